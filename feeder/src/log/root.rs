//! The root directory of an embedded log: which topics there are, making and removing them.

use std::fs;
use std::path::{Path, PathBuf};

use cursorstore::TopicName;

use super::facts::TopicFacts;
use super::files::{self, Held};
use super::guard::{self, GUARDS_DIR};
use super::topic::{Topic, TopicOptions};
use super::{FORMAT, LOCK_NAME, ROOT_FILE, TOPIC_FILE, partition_dir};
use crate::error::{Error, ErrorKind, Result, nearest};
use crate::schema::Schema;

/// Endings of directories that are being made or removed; their names begin with a dot.
const NEW: &str = "new";
const GONE: &str = "gone";
/// Names shown when a topic is not there.
const NAMES_SHOWN: usize = 8;

/// See the module. Cheap to clone; holds nothing open.
#[derive(Clone, Debug)]
pub struct Root {
    path: PathBuf,
}

impl Root {
    /// Opens an existing root.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let file = path.join(ROOT_FILE);
        match fs::metadata(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("no topics are kept here: root={}", path.display()),
                )
                .with_hint("name the directory with --root or FOREBAY_ROOT, or ingest something to make it"));
            }
            Err(error) => return Err(Error::io(format!("cannot open root: root={}", path.display()), error)),
            Ok(_) => {}
        }
        super::check_format(&files::read_small(&file, 4096)?, &file, FORMAT)?;
        Ok(Self { path })
    }

    /// Opens a root, making it if there is none.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if !path.join(ROOT_FILE).exists() {
            let failed = |error| Error::io(format!("cannot make root: root={}", path.display()), error);
            fs::create_dir_all(path.join("topics")).map_err(failed)?;
            let _lock = files::lock_file(&path.join(LOCK_NAME)).and_then(files::lock).map_err(failed)?;
            if !path.join(ROOT_FILE).exists() {
                let text = serde_json::json!({ "format": FORMAT }).to_string();
                files::write_whole(&path.join(ROOT_FILE), text.as_bytes())?;
            }
        }
        Self::open(path)
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all topics, sorted.
    pub fn topics(&self) -> Result<Vec<TopicName>> {
        let mut names = Vec::new();
        for tenant in names_in(&self.path.join("topics"))? {
            for namespace in names_in(&self.path.join("topics").join(&tenant))? {
                for name in names_in(&self.path.join("topics").join(&tenant).join(&namespace))? {
                    let full = format!("persistent://{tenant}/{namespace}/{name}");
                    let Ok(name) = full.parse() else { continue };
                    if self.dir_of(&name).join(TOPIC_FILE).exists() {
                        names.push(name);
                    }
                }
            }
        }
        names.sort();
        Ok(names)
    }

    /// Opens a topic.
    pub fn topic(&self, name: &TopicName) -> Result<Topic> {
        let dir = self.dir_of(name);
        match fs::metadata(dir.join(TOPIC_FILE)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(self.not_found(name)),
            Err(error) => Err(Error::io(format!("cannot open topic: topic={name} path={}", dir.display()), error)),
            Ok(_) => Topic::open(name.clone(), dir),
        }
    }

    /// Makes a topic: it is there whole, or not at all.
    pub fn create_topic(&self, name: &TopicName, schema: &Schema, options: &TopicOptions) -> Result<Topic> {
        let _lock = self.lock()?;
        let dir = self.dir_of(name);
        let exists = || Error::new(ErrorKind::Exists, format!("the topic exists already: topic={name}"));
        if dir.exists() {
            return Err(exists());
        }
        let facts = TopicFacts::new(schema.clone(), options.clone())?;
        let parent = self.parent_of(name);
        let failed = |error| Error::io(format!("cannot make topic: topic={name} path={}", dir.display()), error);
        fs::create_dir_all(&parent).map_err(failed)?;
        clear_leftovers(&parent);
        let beside = parent.join(format!(".{}.{}.{NEW}", name.name(), files::unique()?));
        let made = make_topic_dir(&beside, &facts).and_then(|()| fs::rename(&beside, &dir).map_err(failed));
        if let Err(error) = made {
            let _ = fs::remove_dir_all(&beside);
            return Err(if error.kind() == ErrorKind::Exists { exists() } else { error });
        }
        for dir in [&parent, &parent.join(".."), &parent.join("../..")] {
            files::sync_dir(dir)?;
        }
        Topic::open(name.clone(), dir)
    }

    /// Removes a topic with all its data. Refused while somebody writes it or holds a guard on it.
    pub fn remove_topic(&self, name: &TopicName) -> Result<()> {
        self.remove_topic_if(name, &|| Ok(()))
    }

    /// The same, if `may` has nothing against it. It is asked after the live guards were listed, while none can be made.
    pub fn remove_topic_if(&self, name: &TopicName, may: &dyn Fn() -> Result<()>) -> Result<()> {
        let _lock = self.lock()?;
        let dir = self.dir_of(name);
        let failed = |error| Error::io(format!("cannot remove topic: topic={name} path={}", dir.display()), error);
        if !dir.exists() {
            return Err(self.not_found(name));
        }
        let busy = |what: &str| {
            Error::new(ErrorKind::Busy, format!("the topic is in use, {what}: topic={name}"))
                .with_hint("end the process that uses it, then remove the topic")
        };
        let guards = guard::Folder::open(&dir)?;
        if guards.live()?.next().is_some() {
            return Err(busy("a reader holds a guard on it"));
        }
        may()?;
        let mut locks = Vec::new();
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path().join(LOCK_NAME);
            if entry.file_name() != GUARDS_DIR && path.exists() {
                let lock = files::lock_file(&path).and_then(files::try_lock).map_err(failed)?;
                locks.push(lock.ok_or_else(|| busy("somebody writes it"))?);
            }
        }
        let parent = self.parent_of(name);
        let beside = parent.join(format!(".{}.{}.{GONE}", name.name(), files::unique()?));
        fs::rename(&dir, &beside).map_err(failed)?;
        files::sync_dir(&parent)?;
        fs::remove_dir_all(&beside).map_err(failed)
    }

    fn parent_of(&self, name: &TopicName) -> PathBuf {
        self.path.join("topics").join(name.tenant()).join(name.namespace())
    }

    fn dir_of(&self, name: &TopicName) -> PathBuf {
        self.parent_of(name).join(name.name())
    }

    fn not_found(&self, name: &TopicName) -> Error {
        let names: Vec<String> = self.topics().unwrap_or_default().iter().map(TopicName::to_string).collect();
        let wanted = name.to_string();
        let near = nearest(&wanted, names.iter().map(String::as_str)).map(|near| format!(" (did you mean {near}?)"));
        let shown = names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let there = match names.len() {
            0 => "there are none yet".to_string(),
            n if n > NAMES_SHOWN => format!("there are {shown} and {} more", n - NAMES_SHOWN),
            _ => format!("there are {shown}"),
        };
        let near = near.unwrap_or_default();
        Error::new(
            ErrorKind::NotFound,
            format!("no such topic{near}, {there}: topic={name} root={}", self.path.display()),
        )
        .with_hint("list the topics with: forebay topic ls")
    }

    /// Topics are made and removed one at a time.
    fn lock(&self) -> Result<Held> {
        let path = self.path.join(LOCK_NAME);
        files::lock_file(&path).and_then(files::lock).map_err(|error| {
            Error::io(format!("cannot change the topics of this root: path={}", path.display()), error)
        })
    }
}

/// Names of entries that do not begin with a dot; none if the directory is not there.
fn names_in(dir: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::io(format!("cannot list topics: path={}", dir.display()), error);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if let Ok(name) = entry.file_name().into_string()
            && !name.starts_with('.')
            && entry.path().is_dir()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes what a crash left of topics that were being made or removed.
fn clear_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && [NEW, GONE].iter().any(|ending| name.ends_with(&format!(".{ending}"))) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn make_topic_dir(dir: &Path, facts: &TopicFacts) -> Result<()> {
    let failed = |error| Error::io(format!("cannot make topic: path={}", dir.display()), error);
    fs::create_dir(dir).map_err(failed)?;
    for sub in
        (0..facts.options.partitions).map(|partition| partition_dir(dir, partition)).chain([dir.join(GUARDS_DIR)])
    {
        fs::create_dir(&sub).map_err(failed)?;
        files::lock_file(&sub.join(LOCK_NAME)).map_err(failed)?;
        files::sync_dir(&sub)?;
    }
    files::write_whole(&dir.join(TOPIC_FILE), &facts.to_json()?)
}
