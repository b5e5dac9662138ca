//! Which columns of a file become which columns of the topic.
//!
//! A decoder says what it found, the caller what is wanted ([`Given`]); the outcome is the schema of the rows and, per
//! column, where it comes from and how its elements are cast. All refusals of types and shapes are made here, before
//! anything is read, with column, type and a way out.

use std::path::Path;
use std::sync::Arc;

use super::Given;
use super::cast::Cast;
use super::grow::choose_for_topic;
use crate::error::{Error, ErrorKind, Result, nearest};
use crate::schema::{Column, Dtype, Schema};

/// A column (or array) as a file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) name: String,
    pub(super) element: Element,
    /// Dimensions of one row's value; `None` where lists may have any length.
    pub(super) dims: Vec<Option<u32>>,
    /// The shape of a value, where the file says another one than its lists have.
    pub(super) shape: Option<Vec<u32>>,
    /// Elements are big endian.
    pub(super) swap: bool,
}

/// Element type of a found column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Known(Dtype),
    /// NumPy's `V2`: what it writes for bfloat16, but also for anything else of two bytes.
    Void2,
    /// Not for topics; the text names it, as the format spells it.
    Other(String),
}

/// One column to read: where from and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Take {
    /// Index into what was found.
    pub(super) from: usize,
    pub(super) cast: Cast,
    /// The length that lists have at each dimension; known dimensions of the file are in it as they are.
    pub(super) dims: Vec<u32>,
}

/// The schema of the rows and the columns to read, in its order.
pub(super) fn choose(path: &Path, found: &[Found], given: &Given) -> Result<(Arc<Schema>, Vec<Take>)> {
    if let Some(growing) = given.growing.as_deref().filter(|_| given.schema.is_none()) {
        return choose_for_topic(path, found, given.columns.as_deref(), growing);
    }
    let names = wanted(path, found, given)?;
    let mut columns = Vec::with_capacity(names.len());
    let mut takes = Vec::with_capacity(names.len());
    for name in &names {
        let from = find(path, found, name)?;
        let target = given.schema.as_ref().map(|schema| schema.index_of(name).map(|at| &schema.columns()[at]));
        let (column, take) = match target.transpose()? {
            Some(column) => (column.clone(), take_as(path, found, from, column)?),
            None => infer(path, found, from)?,
        };
        columns.push(column);
        takes.push(take);
    }
    let schema = Schema::new(columns).map_err(|error| Error::invalid(format!("{error} path={}", path.display())))?;
    Ok((Arc::new(schema), takes))
}

/// Names of the columns to take, each once.
fn wanted(path: &Path, found: &[Found], given: &Given) -> Result<Vec<String>> {
    let of_schema = |schema: &Schema| schema.columns().iter().map(|column| column.name.clone()).collect::<Vec<_>>();
    let names = match (&given.schema, &given.columns) {
        (Some(schema), Some(columns)) => {
            let names = of_schema(schema);
            if let Some(odd) = columns.iter().find(|name| !names.contains(name)) {
                return Err(Error::invalid(format!(
                    "a column to take is not in the schema: column={odd:?} schema={schema}"
                )));
            }
            if let Some(odd) = names.iter().find(|name| !columns.contains(name)) {
                return Err(Error::invalid(format!(
                    "a column of the schema is not among those to take: column={odd:?}"
                )));
            }
            names
        }
        (Some(schema), None) => of_schema(schema),
        (None, Some(columns)) => columns.clone(),
        (None, None) => found.iter().map(|column| column.name.clone()).collect(),
    };
    if names.is_empty() {
        return Err(Error::invalid(format!("the file has no columns: path={}", path.display())));
    }
    names_once(path, found, &names)?;
    Ok(names)
}

/// Refuses a name that is asked for twice, or that two columns have.
pub(super) fn names_once(path: &Path, found: &[Found], names: &[impl AsRef<str>]) -> Result<()> {
    for (at, name) in names.iter().map(AsRef::as_ref).enumerate() {
        let before = names[..at].iter().any(|other| other.as_ref() == name);
        if before || found.iter().filter(|column| column.name == *name).count() > 1 {
            return Err(Error::invalid(format!(
                "two columns have the same name: path={} column={name:?}",
                path.display()
            )));
        }
    }
    Ok(())
}

pub(super) fn find(path: &Path, found: &[Found], name: &str) -> Result<usize> {
    found.iter().position(|column| column.name == name).ok_or_else(|| {
        let names: Vec<&str> = found.iter().map(|column| column.name.as_str()).collect();
        let meant = nearest(name, names.iter().copied()).map(|n| format!(" (did you mean {n:?}?)")).unwrap_or_default();
        Error::new(
            ErrorKind::NotFound,
            format!(
                "the file has no such column{meant}, it has {}: path={} column={name:?}",
                names.join(", "),
                path.display()
            ),
        )
    })
}

/// The column as the file has it.
pub(super) fn infer(path: &Path, found: &[Found], from: usize) -> Result<(Column, Take)> {
    let column = &found[from];
    let dtype = match &column.element {
        Element::Known(dtype) => *dtype,
        Element::Void2 => {
            return Err(Error::invalid(format!(
                "two-byte void elements may be bfloat16, or anything else: path={} column={:?}",
                path.display(),
                column.name
            ))
            .with_hint(format!("if they are bfloat16, say so: --schema '{}, ...'", sketch(column, "bfloat16"))));
        }
        Element::Other(name) => return Err(unsupported(path, found, column, name)),
    };
    let Some(dims) = column.dims.iter().copied().collect::<Option<Vec<u32>>>() else {
        return Err(Error::invalid(format!(
            "the type of a column does not say how long its lists are: path={} column={:?} type={}",
            path.display(),
            column.name,
            describe(column)
        ))
        .with_hint(format!(
            "if all are equally long, say so: --schema '{}' (naming all columns to take)",
            sketch(column, dtype.name())
        )));
    };
    let take = Take { from, cast: cast(path, column, dtype, dtype)?, dims: dims.clone() };
    let shape = column.shape.clone().unwrap_or(dims);
    Ok((Column::new(&column.name, dtype, shape), take))
}

/// The column as the schema wants it, if the file's can be that without loss.
pub(super) fn take_as(path: &Path, found: &[Found], from: usize, target: &Column) -> Result<Take> {
    let column = &found[from];
    let dtype = match &column.element {
        Element::Known(dtype) => *dtype,
        Element::Void2 if target.dtype == Dtype::BFloat16 => Dtype::BFloat16,
        Element::Void2 => return Err(differs(path, column, target)),
        Element::Other(name) => return Err(unsupported(path, found, column, name)),
    };
    let cast = cast(path, column, dtype, target.dtype).map_err(|_| differs(path, column, target))?;
    let dims = fit(&column.dims, &target.shape).ok_or_else(|| differs(path, column, target))?;
    Ok(Take { from, cast, dims })
}

/// The file's dimensions made definite so that a row has as many elements as `shape`. One unknown length is whatever is
/// left; with several the number of dimensions must be the same.
fn fit(dims: &[Option<u32>], shape: &[u32]) -> Option<Vec<u32>> {
    let wanted = product(shape.iter().copied())?;
    match dims.iter().filter(|dim| dim.is_none()).count() {
        0 => {
            let dims: Vec<u32> = dims.iter().copied().flatten().collect();
            (product(dims.iter().copied())? == wanted).then_some(dims)
        }
        1 => {
            let known = product(dims.iter().copied().flatten())?;
            let rest = wanted.checked_div(known).filter(|rest| rest * known == wanted)?;
            let rest = u32::try_from(rest).ok()?;
            Some(dims.iter().map(|dim| dim.unwrap_or(rest)).collect())
        }
        _ => {
            let same =
                dims.len() == shape.len() && dims.iter().zip(shape).all(|(dim, n)| dim.is_none_or(|dim| dim == *n));
            same.then(|| shape.to_vec())
        }
    }
}

fn product(mut dims: impl Iterator<Item = u32>) -> Option<u64> {
    dims.try_fold(1u64, |product, n| product.checked_mul(u64::from(n)))
}

fn cast(path: &Path, column: &Found, from: Dtype, to: Dtype) -> Result<Cast> {
    Cast::new(from, to, column.swap).ok_or_else(|| {
        Error::invalid(format!(
            "no lossless cast: path={} column={:?} from={from} to={to}",
            path.display(),
            column.name
        ))
    })
}

fn differs(path: &Path, column: &Found, target: &Column) -> Error {
    Error::invalid(format!(
        "a column is not what the schema says, only wider integers and other shapes of as many elements are made of it: \
         path={} column={:?} schema={} file={}",
        path.display(),
        column.name,
        target.to_string().rsplit_once(':').map_or("", |(_, dtype)| dtype),
        describe(column)
    ))
    .with_hint("change the schema, or cast the column in the file")
}

fn unsupported(path: &Path, found: &[Found], column: &Found, name: &str) -> Error {
    let good: Vec<&str> = found
        .iter()
        .filter(|column| matches!(column.element, Element::Known(_)))
        .map(|column| column.name.as_str())
        .collect();
    let error = Error::invalid(format!(
        "a column has a type that topics do not hold, they hold {}, and lists of fixed length of these: path={} column={:?} type={name}",
        Dtype::ALL.map(Dtype::name).join(", "),
        path.display(),
        column.name
    ));
    match good.is_empty() {
        true => error,
        false => error.with_hint(format!("take the others: --columns {}", good.join(","))),
    }
}

/// Type of a column in the words of schemas, `?` for a length that is not known.
pub(super) fn describe(column: &Found) -> String {
    let element = match &column.element {
        Element::Known(dtype) => dtype.name(),
        Element::Void2 => "void2",
        Element::Other(name) => name,
    };
    match column.dims.is_empty() {
        true => element.to_owned(),
        false => format!("{element}[{}]", dims_text(column, "?")),
    }
}

/// `name:dtype[N]`, to be completed by the user.
fn sketch(column: &Found, dtype: &str) -> String {
    match column.dims.is_empty() {
        true => format!("{}:{dtype}", column.name),
        false => format!("{}:{dtype}[{}]", column.name, dims_text(column, "N")),
    }
}

fn dims_text(column: &Found, unknown: &str) -> String {
    let dims = column.dims.iter().map(|dim| dim.map_or(unknown.to_owned(), |dim| dim.to_string()));
    dims.collect::<Vec<_>>().join("x")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, element: Element, dims: &[Option<u32>]) -> Found {
        Found { name: name.into(), element, dims: dims.to_vec(), shape: None, swap: false }
    }

    fn file() -> Vec<Found> {
        vec![
            found("id", Element::Known(Dtype::Int32), &[]),
            found("image", Element::Known(Dtype::UInt8), &[Some(6), Some(2)]),
            found("vector", Element::Known(Dtype::Float32), &[None]),
            found("name", Element::Other("Utf8".into()), &[]),
            found("half", Element::Void2, &[]),
        ]
    }

    fn with(schema: Option<&str>, columns: Option<&str>) -> Result<(Arc<Schema>, Vec<Take>)> {
        let given = Given {
            schema: schema.map(|text| Schema::parse(text).unwrap()),
            columns: columns.map(|text| text.split(',').map(str::to_owned).collect()),
            growing: None,
        };
        choose(Path::new("f"), &file(), &given)
    }

    #[test]
    fn what_is_asked_for_is_taken_in_that_order() {
        let (schema, takes) = with(None, Some("image,id")).unwrap();
        assert_eq!(schema.to_string(), "image:uint8[6x2], id:int32");
        assert_eq!((takes[0].from, takes[1].from), (1, 0));
        let text = "half:bfloat16, vector:float32[2x4], image:uint8[3x4], id:int64";
        let (schema, takes) = with(Some(text), None).unwrap();
        assert_eq!(schema.to_string(), text);
        assert_eq!(takes[1].dims, [8]);
        assert_eq!(takes[2].dims, [6, 2]);
        assert_eq!(takes[3].cast.bytes_before(), 4);
    }

    #[test]
    fn refusals_name_column_and_way_out() {
        for (schema, columns, why, hint) in [
            (None, None, "how long its lists are", "--schema 'vector:float32[N]'"),
            (None, Some("name"), "type=Utf8", "--columns id,image,vector"),
            (None, Some("half"), "may be bfloat16", "--schema 'half:bfloat16, ...'"),
            (None, Some("imgae"), "did you mean \"image\"?", ""),
            (None, Some("id,id"), "same name", ""),
            (Some("id:int16"), None, "schema=int16 file=int32", ""),
            (Some("id:float64"), None, "not what the schema says", ""),
            (Some("image:uint8[13]"), None, "file=uint8[6x2]", ""),
            (Some("half:uint16"), None, "file=void2", ""),
            (Some("vector:float32"), Some("id"), "not in the schema", ""),
            (Some("id:int32, image:uint8[12]"), Some("id"), "not among those to take", ""),
        ] {
            let error = with(schema, columns).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.hint().unwrap_or_default().contains(hint), "{error:?}");
        }
    }

    #[test]
    fn unknown_lengths_follow_the_schema() {
        assert_eq!(fit(&[None], &[]), Some(vec![1]));
        assert_eq!(fit(&[None, Some(4)], &[12]), Some(vec![3, 4]));
        assert_eq!(fit(&[None, Some(5)], &[12]), None);
        assert_eq!(fit(&[None, None], &[3, 4]), Some(vec![3, 4]));
        assert_eq!(fit(&[None, None], &[12]), None);
        assert_eq!(fit(&[None, Some(0)], &[12]), None);
    }
}
