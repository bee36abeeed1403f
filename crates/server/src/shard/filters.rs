//! Compiled row filters, kept while they are in use.
//!
//! The same `where` arrives again with every page and every repeated dashboard query; compiling one costs as much as
//! reading dozens of rows. The cache is small and forgets everything when it is full, so that no stream of new
//! expressions can make it grow.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use metaroute_cluster::protocol::{ShardError, ShardErrorKind};
use metaroute_expr::Expr;
use metaroute_store::{Filter, Table, TableId};

const FILTERS_MAX: usize = 256;

/// Table, its number of columns, and the text. The number stands for the schema: columns are only ever added.
type Key = (TableId, usize, Arc<str>);

#[derive(Debug, Default)]
pub(super) struct Filters(Mutex<HashMap<Key, Filter>>);

impl Filters {
    /// The compiled form of a filter for a table.
    pub(super) fn get(&self, table: &Table, text: &Arc<str>) -> Result<Filter, ShardError> {
        let key = (table.id(), table.schema().columns().len(), Arc::clone(text));
        if let Some(found) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(found.clone());
        }
        let bad = |message: String| ShardError::new(ShardErrorKind::BadRequest, message);
        let expression = Expr::parse(text).map_err(|error| bad(error.to_string()))?;
        let filter = Filter::new(&expression, table).map_err(|error| bad(error.unsupported.message.clone()))?;
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= FILTERS_MAX {
            cache.clear();
        }
        cache.insert(key, filter.clone());
        Ok(filter)
    }
}
