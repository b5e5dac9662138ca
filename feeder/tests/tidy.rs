//! The tree keeps its shape: how long files are, what words they use, where unsafe code stands, who may depend on whom,
//! and that every module says what it is for.
//!
//! Each rule is a function from files to complaints. It runs over the tree, and over a small file that breaks it, so
//! that a rule which catches nothing is noticed. To allow something new, change the lists here in the same commit.

use std::fmt::Write;
use std::path::Path;

/// Lines of code in one file, its tests apart.
const LINES_MAX: usize = 500;

/// Files that may have unsafe code, each a layer of its own under safe ones.
const UNSAFE: &[&str] = &[
    "bindings/src/dlpack.rs",
    "bindings/src/dlpack/exchange.rs",
    "bindings/src/dlpack/tests.rs",
    "cuda/src/driver.rs",
    "feeder/slab/src/loom_tests.rs",
    "feeder/slab/src/map.rs",
    "feeder/slab/src/process.rs",
    "feeder/slab/tests/common/mod.rs",
    "feeder/slab/tests/processes.rs",
    "feeder/src/reader/cachestat.rs",
    "feeder/src/reader/copy.rs",
    "feeder/src/reader/gather.rs",
    "feeder/src/reader/populate.rs",
    "feeder/src/reader/preadv.rs",
    "feeder/src/reader/region.rs",
    "feeder/src/reader/scatter.rs",
    "feeder/src/reader/tests_uring.rs",
    "feeder/src/reader/uring.rs",
    "feeder/tests/allocations.rs",
    "feeder/tests/corpus/mod.rs",
    "feeder/tests/corpus/sandbox.rs",
    "feeder/tests/growth.rs",
    "feeder/tests/narrow.rs",
];

/// What a crate must not know. A name at the end of which stands `*` is a beginning.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("cursorstore", &["forebay-*", "arrow*", "parquet", "io-uring", "tokio", "pyo3", "cudarc"]),
    ("cuda", &["forebay-*", "arrow*", "parquet", "io-uring", "tokio", "pyo3"]),
    ("feeder/slab", &["forebay-*", "arrow*", "parquet", "io-uring", "tokio", "pyo3", "cudarc"]),
    ("feeder", &["pyo3", "cudarc"]),
    ("bindings", &["cudarc", "io-uring"]),
];

/// Marks of unfinished work, as whole words. (Cut in two, so that this file does not break its own rule.)
const MARKS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("db", "g!")];

/// Names that belong to whoever works on the tree and not into it, as whole words in any case.
const STRANGERS: &[&str] = &["anthropic", "chatgpt", "claude", "copilot", "gemini", "openai"];

/// Hosts of package registries: the tools know them.
const HOSTS: &[&str] =
    &["crates.io", "golang.org", "maven.org", "npmjs.org", "pypi.org", "pythonhosted.org", "deb.debian.org"];

/// Folders of one machine.
const FOLDERS: &[&str] = &[concat!("/wo", "rk"), concat!("/ro", "ot")];

/// This file spells out what it looks for.
const SELF: &str = "feeder/tests/tidy.rs";

struct File {
    /// From the root of the tree, with `/`.
    path: String,
    text: String,
}

impl File {
    fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    fn is(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, found)| found == extension)
    }

    fn is_test(&self) -> bool {
        let mut parts: Vec<&str> = self.path.split('/').collect();
        let name = parts.pop().unwrap_or_default();
        let stem = name.split('.').next().unwrap_or_default();
        parts.iter().any(|part| matches!(*part, "tests" | "benches"))
            || stem == "tests"
            || stem == "conftest"
            || stem.starts_with("tests_")
            || stem.starts_with("test_")
            || stem.ends_with("_tests")
    }

    /// The text without a test module at its end.
    fn code(&self) -> &str {
        let end = self.text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(self.text.len());
        &self.text[..end]
    }
}

/// All text files of the tree that are somebody's work: not what builds leave, nor the lock file, nor the licence.
fn tree() -> Vec<File> {
    fn walk(root: &Path, folder: &Path, files: &mut Vec<File>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let kind = entry.file_type().unwrap();
            let skipped = (name.starts_with('.') && name != ".ci")
                || matches!(&*name, "target" | "__pycache__" | "forebay-data" | "Cargo.lock" | "LICENSE");
            if skipped {
                continue;
            }
            if kind.is_dir() {
                walk(root, &path, files);
            } else if kind.is_file()
                && let Ok(text) = std::fs::read_to_string(&path)
            {
                let path = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
                files.push(File { path, text });
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    walk(root, root, &mut files);
    assert!(files.len() > 20, "the tree was not found: root={}", root.display());
    files
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word)
        .any(|(at, _)| !inside(line[..at].chars().next_back()) && !inside(line[at + word.len()..].chars().next()))
}

/// Whether the folder stands in `line` as a path of its own, not as the middle of another.
fn has_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        before.is_none_or(|c| c.is_whitespace() || "\"'`(=:,<[".contains(c))
            && after.is_none_or(|c| c == '/' || c.is_whitespace() || "\"'`),;:>]".contains(c))
    })
}

fn lines_with<'a>(file: &'a File, bad: impl Fn(&str) -> bool + 'a) -> impl Iterator<Item = (usize, &'a str)> {
    file.text.lines().enumerate().filter(move |(_, line)| bad(line)).map(|(at, line)| (at + 1, line))
}

fn lengths(files: &[File]) -> Vec<String> {
    let code = files.iter().filter(|file| (file.is("rs") || file.is("py")) && !file.is_test());
    code.map(|file| (file, file.code().lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(file, lines)| format!("{}: {lines} lines of code, at most {LINES_MAX}: cut it in two", file.path))
        .collect()
}

fn words(files: &[File]) -> Vec<String> {
    let bad = |line: &str| {
        let lower = line.to_lowercase();
        MARKS.iter().any(|mark| has_word(line, mark))
            || STRANGERS.iter().any(|name| has_word(&lower, name))
            || HOSTS.iter().any(|host| lower.contains(host))
            || FOLDERS.iter().any(|folder| has_folder(line, folder))
    };
    let files = files.iter().filter(|file| file.path != SELF);
    files
        .flat_map(|file| {
            lines_with(file, bad).map(|(at, line)| format!("{}:{at}: a word that does not belong: {line}", file.path))
        })
        .collect()
}

fn unsafe_code(files: &[File]) -> Vec<String> {
    let bad = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        let next = |at: usize| code[at + "unsafe".len()..].trim_start();
        code.match_indices("unsafe").any(|(at, _)| {
            has_word(&code[at.saturating_sub(1)..], "unsafe")
                && ["{", "fn ", "impl ", "impl<", "trait ", "extern "].iter().any(|start| next(at).starts_with(start))
        })
    };
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.is("rs") && file.path != SELF) {
        let allowed = UNSAFE.contains(&file.path.as_str());
        let mut found = lines_with(file, bad).peekable();
        if allowed && found.peek().is_none() {
            complaints.push(format!("{}: has no unsafe code any more: take it off the list", file.path));
        }
        if !allowed {
            complaints.extend(found.map(|(at, _)| format!("{}:{at}: unsafe code outside its modules", file.path)));
        }
    }
    complaints
}

fn headers(files: &[File]) -> Vec<String> {
    let has = |file: &&File| match file.path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs") => file.text.starts_with("//! "),
        Some("py") => {
            let first = file.text.lines().find(|line| !line.starts_with("#!") && !line.is_empty());
            first.is_none_or(|line| line.starts_with("\"\"\""))
        }
        _ => true,
    };
    let without = files.iter().filter(|file| !has(file));
    without.map(|file| format!("{}: says nothing at its top about what it is for", file.path)).collect()
}

/// Names on the left of a manifest's dependency tables, and the packages that renamed ones stand for.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(table) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            // `[target.'cfg(..)'.dependencies]` and `[dependencies.name]`; not what the workspace offers to choose from.
            let (_, last) = table.rsplit_once('.').unwrap_or(("", table));
            inside = last.ends_with("dependencies") && table != "workspace.dependencies";
            if let Some((before, name)) = table.rsplit_once('.')
                && before.ends_with("dependencies")
            {
                names.push(name.to_string());
            }
        } else if inside && let Some((left, right)) = line.split_once('=') {
            names.push(left.split('.').next().unwrap_or_default().trim().trim_matches('"').to_string());
            if let Some((_, package)) = right.split_once("package") {
                names.extend(package.split('"').nth(1).map(str::to_string));
            }
        }
    }
    names
}

fn directions(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (folder, forbidden) in FORBIDDEN {
        let manifest = format!("{folder}/Cargo.toml");
        let Some(file) = files.iter().find(|file| file.path == manifest) else {
            complaints.push(format!("{manifest}: is not there any more"));
            continue;
        };
        for name in dependencies(&file.text) {
            let hit = forbidden.iter().any(|rule| match rule.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == *rule,
            });
            if hit {
                complaints.push(format!("{manifest}: must not know {name}"));
            }
        }
    }
    complaints
}

fn assert_tidy(rule: fn(&[File]) -> Vec<String>) {
    let complaints = rule(&tree());
    let mut text = String::new();
    complaints.iter().for_each(|complaint| writeln!(text, "{complaint}").unwrap());
    assert!(complaints.is_empty(), "{} complaints:\n{text}", complaints.len());
}

#[test]
fn files_are_short() {
    assert_tidy(lengths);
    let long = "fn f() {}\n".repeat(LINES_MAX + 1);
    let tested = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
    assert_eq!(lengths(&[File::new("a/src/long.rs", &*long), File::new("a/long.py", &*long)]).len(), 2);
    let apart = [
        File::new("a/src/tests.rs", &*long),
        File::new("a/src/x/loom_tests.rs", &*long),
        File::new("a/tests/all.rs", &*long),
        File::new("a/src/tested.rs", tested),
    ];
    assert!(lengths(&apart).is_empty());
}

#[test]
fn words_belong() {
    assert_tidy(words);
    let bad = |line: &str| words(&[File::new("a.md", line)]).len();
    for line in MARKS.iter().chain(STRANGERS).chain(HOSTS).chain(FOLDERS) {
        assert_eq!(bad(line), 1, "{line}");
    }
    assert_eq!(bad(&format!("see `{}/a/b.txt`", FOLDERS[0])), 1);
    assert_eq!(bad(&format!("export DATA={}", FOLDERS[1])), 1);
    for line in ["$root/work", "a/work/b", "net/rooted", "MAXXXX", "TODOS_MAX", "the work of roots", "/workers"] {
        assert_eq!(bad(line), 0, "{line}");
    }
}

#[test]
fn unsafe_code_stands_in_its_modules() {
    assert_tidy(unsafe_code);
    let bad = |path: &str, line: &str| unsafe_code(&[File::new(path, line)]).len();
    for line in ["let x = unsafe { *p };", "unsafe impl Send for X {}", "pub unsafe fn f() {}", "unsafe extern \"C\" {"]
    {
        assert_eq!(bad("feeder/src/new.rs", line), 1, "{line}");
        assert_eq!(bad(UNSAFE[0], line), 0, "{line}");
    }
    for line in ["#![deny(unsafe_code)]", "// unsafe { not code }", "let not_unsafe = 1;", "fn f() {}"] {
        assert_eq!(bad("feeder/src/new.rs", line), 0, "{line}");
        assert_eq!(bad(UNSAFE[0], line), 1, "a listed file that needs the list no more: {line}");
    }
}

#[test]
fn modules_say_what_they_are_for() {
    assert_tidy(headers);
    assert_eq!(headers(&[File::new("a.rs", "use x;\n"), File::new("a.py", "import x\n")]).len(), 2);
    let good = [
        File::new("a.rs", "//! What a is for.\n"),
        File::new("a.py", "#!/usr/bin/env python3\n\"\"\"What a is for.\"\"\"\n"),
        File::new("a.toml", "[a]\n"),
    ];
    assert!(headers(&good).is_empty());
}

#[test]
fn crates_know_only_what_lies_below_them() {
    assert_tidy(directions);
    let manifests = |bad: &str, line: &str| {
        let text = |folder: &str| if folder == bad { line.to_string() } else { String::new() };
        FORBIDDEN.iter().map(|(folder, _)| File::new(format!("{folder}/Cargo.toml"), text(folder))).collect::<Vec<_>>()
    };
    for (folder, line) in [
        ("cursorstore", "[dependencies]\nforebay-slab.workspace = true"),
        ("cuda", "[dev-dependencies]\nforebay-feeder = { path = \"../feeder\" }"),
        ("feeder/slab", "[target.'cfg(loom)'.dependencies]\narrow-array = \"1\""),
        ("feeder", "[dependencies.pyo3]\nversion = \"1\""),
        ("cursorstore", "[build-dependencies]\nruntime = { package = \"tokio\" }"),
    ] {
        assert_eq!(directions(&manifests(folder, line)).len(), 1, "{folder} {line}");
    }
    assert!(
        directions(&manifests("feeder", "[dependencies]\nforebay-slab.workspace = true\n[features]\npyo3 = []"))
            .is_empty()
    );
    assert_eq!(directions(&[]).len(), FORBIDDEN.len());
}
