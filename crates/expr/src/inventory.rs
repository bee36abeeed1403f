//! What is there today: the keys and values of a live set of instances, for checking rules against.

use std::collections::{BTreeMap, HashMap};

use crate::value::Parsed;

/// Keys to distinct values with counts, built from instances one at a time.
///
/// ```
/// use metaroute_expr::{Inventory, Parsed};
///
/// let mut inventory = Inventory::default();
/// inventory.add([("env", Parsed::text("prod")), ("version", Parsed::text("2.3"))]);
/// inventory.add([("env", Parsed::text("dev"))]);
/// assert_eq!(inventory.len(), 2);
/// assert_eq!(inventory.keys().collect::<Vec<_>>(), ["env", "version"]);
/// assert_eq!(inventory.present("version"), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    instances: usize,
    columns: BTreeMap<Box<str>, ColumnData>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ColumnData {
    pub(crate) codes: Vec<u32>,
    pub(crate) values: Vec<Parsed>,
    /// Instances per value.
    counts: Vec<usize>,
    numbers: HashMap<Parsed, u32>,
}

impl Inventory {
    /// An inventory without instances.
    pub fn new() -> Self {
        Inventory::default()
    }

    /// Adds one instance by its keys and values. Of a key given twice the last value counts. Attributes go under
    /// `$self.` names.
    pub fn add<K: AsRef<str>>(&mut self, keys: impl IntoIterator<Item = (K, Parsed)>) {
        let row = self.instances;
        self.instances += 1;
        for (key, value) in keys {
            let key = key.as_ref();
            if !self.columns.contains_key(key) {
                self.columns.insert(key.into(), ColumnData::default());
            }
            let Some(column) = self.columns.get_mut(key) else { continue };
            let next = u32::try_from(column.values.len()).expect("fewer than 2^32 values");
            let code = *column.numbers.entry(value.clone()).or_insert(next);
            if code == next {
                column.values.push(value);
                column.counts.push(0);
            }
            if column.codes.len() <= row {
                column.codes.resize(row, crate::Column::ABSENT);
                column.codes.push(code);
            } else {
                let before = std::mem::replace(&mut column.codes[row], code);
                column.counts[before as usize] -= 1;
            }
            column.counts[code as usize] += 1;
        }
    }

    /// The number of instances.
    pub fn len(&self) -> usize {
        self.instances
    }

    /// Whether there is no instance.
    pub fn is_empty(&self) -> bool {
        self.instances == 0
    }

    /// The keys that any instance has, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.columns.keys().map(|key| &**key)
    }

    /// How many instances have the key.
    pub fn present(&self, key: &str) -> usize {
        self.columns.get(key).map_or(0, |column| column.counts.iter().sum())
    }

    /// The distinct values of a key with the number of instances that have each (zero where a later value
    /// of the same instance took its place), in order of first appearance.
    pub fn values(&self, key: &str) -> impl Iterator<Item = (&Parsed, usize)> {
        self.columns.get(key).into_iter().flat_map(|column| column.values.iter().zip(column.counts.iter().copied()))
    }

    pub(crate) fn column(&self, key: &str) -> Option<&ColumnData> {
        self.columns.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_and_the_last_one_of_an_instance_wins() {
        let mut inventory = Inventory::new();
        inventory.add([("a", Parsed::text("1")), ("a", Parsed::text("2"))]);
        inventory.add([("b", Parsed::text("1"))]);
        inventory.add([("a", Parsed::text("2"))]);
        let counts: Vec<(&str, usize)> = inventory.values("a").map(|(value, count)| (value.as_text(), count)).collect();
        assert_eq!(counts, [("1", 0), ("2", 2)]);
        assert_eq!([inventory.present("a"), inventory.present("b"), inventory.present("c")], [2, 1, 0]);
        let column = inventory.column("a").expect("a key");
        assert_eq!(column.codes, [1, crate::Column::ABSENT, 1]);
    }
}
