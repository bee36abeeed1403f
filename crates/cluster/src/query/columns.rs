//! Names of columns in requests: fields to return and keys of `where`.

use metaroute_expr as expr;
use metaroute_store::{Filter, Schema};

use crate::failure::{Code, Failure, Place};

/// The ordinals of named columns, in the order named, each once.
pub(super) fn ordinals(store: &Schema, names: &[String]) -> Result<Vec<usize>, Failure> {
    let mut ordinals = Vec::with_capacity(names.len());
    for name in names {
        let at = store.named(name).ok_or_else(|| unknown(store, name))?;
        if !ordinals.contains(&at) {
            ordinals.push(at);
        }
    }
    if ordinals.is_empty() {
        return Err(Failure::new(Code::BadRequest, "`fields` names no column"));
    }
    Ok(ordinals)
}

fn unknown(store: &Schema, name: &str) -> Failure {
    let known = store.columns().iter().map(|column| column.name.as_str());
    let failure = Failure::new(Code::UnknownField, format!("store `{}` has no column `{name}`", store.name()));
    match metaroute_registry::document::suggest(name, known) {
        Some(word) => failure.hint(format!("did you mean `{word}`?")),
        None => failure,
    }
}

/// Binds a row filter against a store: unknown columns and `$` values are errors, every type is the column's.
pub(super) fn bind(store: &Schema, filter: &expr::Expr) -> Result<expr::Program, Failure> {
    Filter::bind(filter, store).map_err(|error| {
        let mut failure = match filter.keys().find(|name| store.named(name).is_none()) {
            Some(name) if error.unsupported.code == "unknown_field" => unknown(store, name),
            _ => Failure::new(Code::BadExpression, error.unsupported.message),
        };
        failure.at = Some(Place { line: error.line, column: error.column });
        failure.hint = failure.hint.or(error.unsupported.hint);
        failure
    })
}
