//! The command line, callable from `main` and from Python alike.
//!
//! [`run`] takes arguments (with the program's name first) and two writers, and returns the exit code: 0, or that of the
//! error's kind, which `forebay --help` lists. Results go to `out`, for people or with `--json` for machines; errors,
//! notes and progress go to `err`. An error is a line `error: ...`, followed by `try: ...` where there is a next step.
//! Whoever closes `out` early (a pipe into `head`) has seen enough: that is no error.

mod bench;
mod checkpoint;
mod console;
mod dataset;
mod ingest;
mod interrupt;
mod meter;
mod plan;
mod text;
mod topic;
mod trim;
mod values;

#[cfg(test)]
mod dataset_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_checkpoint;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use clap::error::ErrorKind as ClapKind;
use clap::{CommandFactory, Parser, Subcommand};

use console::{Console, Failure};

/// Where topics are kept when nobody says.
const ROOT_DEFAULT: &str = "./forebay-data";
const ROOT_VARIABLE: &str = "FOREBAY_ROOT";
const EXIT_INTERNAL: u8 = 1;
const EXIT_USAGE: u8 = 2;

const HELP: &str = "\
Examples:
  forebay ingest digits.npz 'shards/*.parquet' --topic digits
  forebay topic show digits
  forebay topic tail digits -n 3
  forebay dataset pin digits-clean --topic digits
  forebay plan digits --global-batch-size 256 --world-size 4
  forebay checkpoint ls vision
  forebay checkpoint rewind vision --to 30
  forebay bench digits --batch-size 256 --shuffle

Exit codes:
   0  done
   1  a fault in forebay itself
   2  an argument, a file's types or a name is wrong: change it
   3  the topic, dataset version, file or column is not there
   4  it is there already
   5  access refused by the system
   6  somebody else holds it, for example another process writes the topic
   7  data are damaged
   8  a state or file does not match what was expected of it
   9  data are no longer retained
  10  no room: disk full, memory limit
  11  a time-out passed
  12  closed meanwhile
  13  a read or write failed
  14  fenced: a later run of the job has taken over
 130  interrupted

Environment:
  FOREBAY_ROOT  where topics are kept, unless --root says so (else ./forebay-data)";

/// Feeds training data to GPUs, exactly: none lost, none twice, always in the same order.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, after_help = HELP, max_term_width = 100, subcommand_required = true)]
#[command(arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What all commands take.
#[derive(Clone, Debug, clap::Args)]
struct Global {
    /// Directory that keeps the topics [default: $FOREBAY_ROOT, else ./forebay-data]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    root: Option<PathBuf>,
    /// Print results as JSON
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
}

impl Global {
    fn root(&self) -> PathBuf {
        let variable = || std::env::var_os(ROOT_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        self.root.clone().or_else(variable).unwrap_or_else(|| ROOT_DEFAULT.into())
    }

    /// A failure whose hint names commands that work where this one did: with its `--root`.
    fn in_root(&self, failure: Failure) -> Failure {
        match (failure, &self.root) {
            (Failure::Error(error), Some(root)) => Failure::Error(match error.hint() {
                Some(hint) => {
                    let hint = rooted(hint, &text::quoted(&root.to_string_lossy()));
                    error.with_hint(hint)
                }
                None => error,
            }),
            (failure, _) => failure,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Store files (npy, npz, parquet, arrow) in a topic, each record once
    Ingest(ingest::Args),
    /// Make, list, look at, check and remove topics
    #[command(subcommand)]
    Topic(topic::Command),
    /// Pin, list, compare, check and export dataset versions
    #[command(subcommand)]
    Dataset(dataset::Command),
    /// List, look at, rewind and remove the checkpoints of jobs
    #[command(subcommand)]
    Checkpoint(checkpoint::Command),
    /// Show what training on a topic will cost and how well it mixes
    Plan(plan::Args),
    /// Measure this machine's limits and the pipeline against them, in a few seconds
    Bench(bench::Args),
}

/// Runs one command with writers of the caller; never draws a progress bar. Returns the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    run_on(args, &mut Console::new(out, err, false))
}

/// Runs one command on the process's own standard streams, with a progress bar if they are a terminal, and with a word on
/// how to go on when it is interrupted. Returns the exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr());
    let bar = err.is_terminal();
    let code = run_on(args, &mut Console::new(&mut out, &mut err, bar));
    // Nobody can be told if this fails.
    let _ = out.flush();
    code
}

fn run_on(args: impl IntoIterator<Item = OsString>, console: &mut Console<'_>) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let wanted = matches!(error.kind(), ClapKind::DisplayHelp | ClapKind::DisplayVersion);
            let text = error.render().to_string();
            return match wanted {
                true => finish(console.line(text.trim_end()), console),
                false => {
                    console.complain(text.trim_end());
                    EXIT_USAGE
                }
            };
        }
    };
    console.json = cli.global.json;
    let work = || match &cli.command {
        Command::Ingest(args) => ingest::run(args, &cli.global, console),
        Command::Topic(command) => topic::run(command, &cli.global, console),
        Command::Dataset(command) => dataset::run(command, &cli.global, console),
        Command::Checkpoint(command) => checkpoint::run(command, &cli.global, console),
        Command::Plan(args) => plan::run(args, &cli.global, console),
        Command::Bench(args) => bench::run(args, &cli.global, console),
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => finish(done.map_err(|failure| cli.global.in_root(failure)), console),
        Err(_) => {
            console.complain("error: a fault in forebay itself, see above; what was acknowledged is stored");
            EXIT_INTERNAL
        }
    }
}

/// A hint with `--root` in the commands that it names.
fn rooted(hint: &str, root: &str) -> String {
    let commands = Cli::command();
    commands.get_subcommands().fold(hint.to_owned(), |hint, command| {
        let name = command.get_name();
        hint.replace(&format!("forebay {name} "), &format!("forebay --root {root} {name} "))
    })
}

/// The exit code of a command, its error shown.
fn finish(done: Result<(), Failure>, console: &mut Console<'_>) -> u8 {
    let error = match done.and_then(|()| console.flush()) {
        Ok(()) | Err(Failure::Pipe) => return 0,
        Err(Failure::Error(error)) => error,
    };
    console.complain(&format!("error: {}", error.report()));
    if let Some(hint) = error.hint() {
        console.complain(&format!("try: {hint}"));
    }
    error.kind().exit_code().max(EXIT_INTERNAL)
}
