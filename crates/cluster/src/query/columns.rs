//! Names of columns in requests: fields to return and keys of `where`.

use metaroute_expr as expr;
use metaroute_store::{ColumnType, Schema};

use crate::failure::{Code, Failure, Place};

/// The ordinals of named columns, in the order named, each once. `id`, `tenant` and `time` stand for those columns where
/// no column has that very name.
pub(super) fn ordinals(store: &Schema, names: &[String]) -> Result<Vec<usize>, Failure> {
    let mut ordinals = Vec::with_capacity(names.len());
    for name in names {
        let at = store.ordinal(name).or(match name.as_str() {
            "id" => Some(store.id()),
            "tenant" => Some(store.tenant()),
            "time" => store.time(),
            _ => None,
        });
        let at = at.ok_or_else(|| unknown(store, name))?;
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
    filter.bind(&mut Names { store }).map_err(|error| {
        let code = match error.unsupported.code {
            "unknown_field" => Code::UnknownField,
            _ => Code::BadExpression,
        };
        let mut failure = Failure::new(code, error.unsupported.message);
        failure.at = Some(Place { line: error.line, column: error.column });
        failure.hint = error.unsupported.hint;
        failure
    })
}

/// The columns as the expression language asks for them. Key ids are ordinals.
struct Names<'a> {
    store: &'a Schema,
}

impl expr::Schema for Names<'_> {
    fn key(&mut self, name: &str) -> Result<expr::KeyId, expr::Unsupported> {
        match self.store.ordinal(name) {
            Some(at) => Ok(expr::KeyId(at as u32)),
            None => {
                let failure = unknown(self.store, name);
                let error = expr::Unsupported::new(failure.message).with_code("unknown_field");
                Err(match failure.hint {
                    Some(hint) => error.with_hint(hint),
                    None => error,
                })
            }
        }
    }

    fn attribute(&mut self, attribute: expr::Attribute) -> Result<expr::KeyId, expr::Unsupported> {
        Err(expr::Unsupported::new(format!("rows have no `$self.{attribute}`")))
    }

    fn slot(&mut self, scope: expr::SlotScope, name: &str) -> Result<expr::SlotId, expr::Unsupported> {
        Err(expr::Unsupported::new(format!("`{scope}.{name}` cannot be used to filter rows")))
    }

    fn declared(&self, name: &str) -> Option<expr::Type> {
        let at = self.store.ordinal(name)?;
        Some(match self.store.columns()[at].ty {
            ColumnType::U64 | ColumnType::I64 | ColumnType::F64 | ColumnType::Decimal { .. } => expr::Type::Number,
            ColumnType::Bool => expr::Type::Bool,
            ColumnType::Timestamp { .. } | ColumnType::Datetime { .. } | ColumnType::Date => {
                expr::Type::Time(expr::TimeUnit::Rfc3339)
            }
            _ => expr::Type::Text,
        })
    }

    fn infers_types(&self) -> bool {
        false
    }
}
