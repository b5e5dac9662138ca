//! The command `forebay`; everything is in [`feeder::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(feeder::cli::main(std::env::args_os()))
}
