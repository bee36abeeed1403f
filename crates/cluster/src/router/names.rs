//! The names a sub-request carries, made once.
//!
//! A store is asked for by name and its columns by theirs, because shard and router may have learned of a column at
//! different times. Nearly all queries ask for the same few sets of columns, so their names are kept and shared instead
//! of being copied for every query.

use std::sync::Arc;

use arc_swap::ArcSwap;
use metaroute_store::Schema;

use crate::query::Query;

/// Sets of columns remembered; with more of them in use each is made anew when it is forgotten.
const KEPT_MAX: usize = 64;

/// The names of a query.
#[derive(Clone, Debug)]
pub(super) struct Names {
    schema: Arc<Schema>,
    ordinals: Arc<[usize]>,
    pub(super) store: Arc<str>,
    pub(super) fields: Arc<[String]>,
}

/// Names in use.
#[derive(Debug, Default)]
pub(super) struct Kept(ArcSwap<Vec<Names>>);

impl Kept {
    /// The names of a query's store and columns.
    pub(super) fn of(&self, query: &Query) -> Names {
        let kept = self.0.load();
        let found =
            kept.iter().find(|names| Arc::ptr_eq(&names.schema, &query.store) && names.ordinals == query.fields);
        if let Some(names) = found {
            return names.clone();
        }
        let made = Names {
            schema: Arc::clone(&query.store),
            ordinals: Arc::clone(&query.fields),
            store: query.store.name().into(),
            fields: query.field_names().into(),
        };
        let room = if kept.len() < KEPT_MAX { kept.as_slice() } else { &[] };
        // Who is faster wins; what the other one made is made again the next time.
        self.0.store(Arc::new(room.iter().chain([&made]).cloned().collect()));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::QueryRequest;
    use crate::testing::file_metadata;

    #[test]
    fn names_are_those_of_the_columns_whoever_asked_before() {
        let kept = Kept::default();
        let store = file_metadata();
        for round in 0..3 {
            for n in 0..KEPT_MAX + 9 {
                let at = n % store.columns().len();
                let mut fields = vec![store.columns()[at].name.clone()];
                fields.extend(
                    (0..n % 5).map(|more| store.columns()[(at + more + 1) % store.columns().len()].name.clone()),
                );
                let request = QueryRequest { tenant: Some(1), fields: Some(fields.clone()), ..QueryRequest::default() };
                let query = Query::new(&store, request).expect("legal");
                let names = kept.of(&query);
                assert_eq!((&*names.store, &*names.fields), ("file_metadata", &fields[..]), "round {round}");
                assert!(Arc::ptr_eq(&names.fields, &kept.of(&query).fields), "kept");
            }
        }
        assert!(kept.0.load().len() <= KEPT_MAX);
    }
}
