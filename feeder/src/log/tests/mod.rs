//! Tests of the log as a whole. Crashes are real (children killed, files cut and damaged at every byte), disks are full
//! for real, and all rows can be told apart.

mod access;
mod appends;
mod arrow_files;
mod crash;
mod damage;
mod growth;
mod hostile;
mod keeping;
mod space;
pub(super) mod support;
