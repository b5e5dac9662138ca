//! A file for a topic that is there: which of its columns are the topic's, which are wider, which are new.
//!
//! Columns go by name. What the topic's type can hold is read as that; a wider type of the same kind is kept, and the
//! topic's column becomes as wide; a column that is new needs a default; one that was added with a default may be missing.
//! Everything else is refused with file, column and a way out: nothing is left out silently.

use std::path::Path;
use std::sync::Arc;

use super::choose::{Element, Found, Take, describe, find, infer, names_once, take_as};
use crate::error::{Error, ErrorKind, Result};
use crate::schema::{Column, Schema};
use crate::versions::{Defaults, Schemas};
use crate::widen::Widen;

/// The topic that files are to fit, and what its rows have in columns that the files add.
#[derive(Clone, Debug)]
pub struct Growing {
    /// The topic's schemas.
    pub schemas: Arc<Schemas>,
    /// Values for new columns.
    pub defaults: Defaults,
}

impl Growing {
    /// The column that an array without a name is, if the topic says.
    pub(super) fn only_column(&self) -> Option<&str> {
        let columns = self.schemas.newest().schema.columns().iter();
        let mut needed = columns.filter(|column| self.schemas.default_of(&column.name).is_none());
        match (needed.next(), needed.next()) {
            (Some(one), None) => Some(&one.name),
            _ => None,
        }
    }
}

/// The schema of a file's rows, as the topic takes them, and the columns to read; the topic's columns first, in its order.
pub(super) fn choose_for_topic(
    path: &Path,
    found: &[Found],
    columns: Option<&[String]>,
    growing: &Growing,
) -> Result<(Arc<Schema>, Vec<Take>)> {
    let names: Vec<&str> = match columns {
        Some(columns) => columns.iter().map(String::as_str).collect(),
        None => found.iter().map(|column| column.name.as_str()).collect(),
    };
    names_once(path, found, &names)?;
    let topic = &growing.schemas.newest().schema;
    let (mut chosen, mut takes) = (Vec::new(), Vec::new());
    for column in topic.columns() {
        if !names.contains(&column.name.as_str()) && growing.schemas.default_of(&column.name).is_some() {
            continue;
        }
        if columns.is_some() && !names.contains(&column.name.as_str()) {
            let text = format!("a column of the topic is not among those to take: column={:?}", column.name);
            return Err(Error::invalid(text).with_hint("name all columns that have no default, and new ones"));
        }
        let from = find(path, found, &column.name).map_err(missing)?;
        let (column, take) = as_wide(path, found, from, column)?;
        chosen.push(column);
        takes.push(take);
    }
    for name in &names {
        if topic.columns().iter().any(|column| column.name == *name) {
            continue;
        }
        let from = find(path, found, name)?;
        if !growing.defaults.has(name) {
            return Err(undeclared(path, &found[from], topic));
        }
        let (column, take) = infer(path, found, from)?;
        chosen.push(column);
        takes.push(take);
    }
    let schema = Schema::new(chosen).map_err(|error| Error::invalid(format!("{error} path={}", path.display())))?;
    Ok((Arc::new(schema), takes))
}

/// The column as the topic has it, or as wide as the file has it.
fn as_wide(path: &Path, found: &[Found], from: usize, topic: &Column) -> Result<(Column, Take)> {
    let fits = take_as(path, found, from, topic);
    let wider = match found[from].element {
        Element::Known(dtype) => Widen::new(topic.dtype, dtype),
        _ => None,
    };
    match (fits, wider) {
        (Ok(take), _) => Ok((topic.clone(), take)),
        (Err(error), None) => Err(error.with_hint("cast the column in the file, or put the file into another topic")),
        (Err(_), Some(wider)) => {
            let column = Column { dtype: wider.to(), ..topic.clone() };
            let take = take_as(path, found, from, &column)?;
            Ok((column, take))
        }
    }
}

fn missing(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => {
            error.with_hint("the topic needs the column in every file; files without it go into another topic")
        }
        _ => error,
    }
}

fn undeclared(path: &Path, column: &Found, topic: &Schema) -> Error {
    let names: Vec<&str> = topic.columns().iter().map(|column| column.name.as_str()).collect();
    Error::invalid(format!(
        "a column is new to the topic, and its rows so far need a value there: path={} column={:?} type={}",
        path.display(),
        column.name,
        describe(column)
    ))
    .with_hint(format!(
        "add it with --default {}=0, or leave it out with --columns {}",
        column.name,
        names.join(",")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Dtype;

    fn found(name: &str, dtype: Dtype, dims: &[Option<u32>]) -> Found {
        Found { name: name.into(), element: Element::Known(dtype), dims: dims.to_vec(), shape: None, swap: false }
    }

    fn growing(defaults: &[&str]) -> Growing {
        let first = Schemas::first(Arc::new(Schema::parse("id:int32, x:float16[2x3], h:bfloat16").unwrap()));
        let mut growth = first.growth();
        let label = Defaults::parse(&["label=1".into()]).unwrap();
        let schema = Schema::parse("id:int32, x:float16[2x3], h:bfloat16, label:int8").unwrap();
        growth.take(&schema, &label).unwrap();
        let schemas = Arc::new(first.with(growth.version(0).unwrap().unwrap()).unwrap());
        let defaults = defaults.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Growing { schemas, defaults: Defaults::parse(&defaults).unwrap() }
    }

    fn chosen(file: &[Found], columns: Option<&str>, defaults: &[&str]) -> Result<String> {
        let columns: Option<Vec<String>> = columns.map(|text| text.split(',').map(str::to_owned).collect());
        let (schema, takes) = choose_for_topic(Path::new("f"), file, columns.as_deref(), &growing(defaults))?;
        let names = takes.iter().map(|take| file[take.from].name.as_str());
        assert!(names.eq(schema.columns().iter().map(|column| column.name.as_str())));
        Ok(schema.to_string())
    }

    fn file(id: Dtype, x: Dtype) -> Vec<Found> {
        // bfloat16 comes as uint16, lists of any length take the topic's.
        vec![found("h", Dtype::UInt16, &[]), found("x", x, &[None]), found("id", id, &[])]
    }

    #[test]
    fn columns_are_the_topic_s_or_wider_or_declared() {
        let same = "id:int32, x:float16[2x3], h:bfloat16";
        assert_eq!(chosen(&file(Dtype::Int32, Dtype::Float16), None, &[]).unwrap(), same);
        assert_eq!(chosen(&file(Dtype::UInt16, Dtype::Float16), None, &[]).unwrap(), same);
        let wide = chosen(&file(Dtype::Int64, Dtype::Float32), None, &[]).unwrap();
        assert_eq!(wide, "id:int64, x:float32[2x3], h:bfloat16");
        let mut more = file(Dtype::Int32, Dtype::Float16);
        more.insert(0, found("w", Dtype::Float64, &[Some(2)]));
        more.insert(0, found("label", Dtype::Int16, &[]));
        let all = chosen(&more, None, &["w=0"]).unwrap();
        assert_eq!(all, "id:int32, x:float16[2x3], h:bfloat16, label:int16, w:float64[2]");
        assert_eq!(chosen(&more, Some("x,id,h"), &[]).unwrap(), same);
        let error = chosen(&more, None, &[]).unwrap_err();
        assert!(error.to_string().contains("column=\"w\" type=float64[2]"), "{error}");
        assert!(error.hint().unwrap().contains("--columns id,x,h,label"), "{error:?}");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (file, columns, why) in [
            (file(Dtype::UInt32, Dtype::Float16), None, "schema=int32 file=uint32"),
            (file(Dtype::Int32, Dtype::BFloat16), None, "schema=float16[2x3] file=bfloat16"),
            (file(Dtype::Int32, Dtype::Float16)[..2].to_vec(), None, "no such column"),
            (file(Dtype::Int32, Dtype::Float16), Some("id,h"), "not among those to take: column=\"x\""),
            (file(Dtype::Int32, Dtype::Float16), Some("id,h,x,y"), "no such column"),
            (file(Dtype::Int32, Dtype::Float16), Some("id,h,x,x"), "same name"),
        ] {
            let error = chosen(&file, columns, &[]).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        assert_eq!(growing(&[]).only_column(), None);
    }
}
