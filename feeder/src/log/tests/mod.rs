//! Tests of the log through its public face.

mod appends;
