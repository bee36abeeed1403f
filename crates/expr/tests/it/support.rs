//! One way to ask "what does this expression say about that instance".

use std::collections::BTreeMap;

use metaroute_expr::{
    Attribute, Context, Dialect, Expr, Key, KeyId, KeyTable, Parsed, Program, Record, SlotId, SlotScope, Type, Value,
};

/// An instance, its caller and its request, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Case {
    pub(crate) types: BTreeMap<String, Type>,
    pub(crate) metadata: Vec<(String, Parsed)>,
    pub(crate) attributes: Vec<(Attribute, Parsed)>,
    pub(crate) caller: Vec<(String, String)>,
    pub(crate) request: Vec<(String, String)>,
}

/// `a=1, b=2`: what stands in the tables of the specification. Values keep their inner spaces.
pub(crate) fn instance(metadata: &str) -> Case {
    Case::default().with(metadata)
}

fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split(", ").filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').expect("key=value");
        (key.to_owned(), value.to_owned())
    })
}

impl Case {
    pub(crate) fn with(mut self, metadata: &str) -> Self {
        self.metadata.extend(pairs(metadata).map(|(key, value)| (key, Parsed::text(value))));
        self
    }

    pub(crate) fn list(mut self, key: &str, items: &[&str]) -> Self {
        self.metadata.push((key.to_owned(), Parsed::list(items.iter().map(|item| Box::from(*item)))));
        self
    }

    pub(crate) fn typed(mut self, key: &str, word: &str) -> Self {
        self.types.insert(key.to_owned(), word.parse().expect("a type"));
        self
    }

    pub(crate) fn attribute(mut self, attribute: Attribute, value: &str) -> Self {
        self.attributes.push((attribute, Parsed::text(value)));
        self
    }

    pub(crate) fn caller(mut self, values: &str) -> Self {
        self.caller.extend(pairs(values));
        self
    }

    pub(crate) fn request(mut self, values: &str) -> Self {
        self.request.extend(pairs(values));
        self
    }

    /// The value under dialect v1.
    pub(crate) fn says(&self, expression: &str) -> bool {
        self.says_as(expression, Dialect::V1)
    }

    pub(crate) fn says_as(&self, expression: &str, dialect: Dialect) -> bool {
        let expr = Expr::parse_as(expression, dialect)
            .unwrap_or_else(|error| panic!("{expression}: {}", error.render(expression)));
        let (program, bound) = self.bind(&expr);
        let value = program.eval(&bound, &bound);
        assert_eq!(program.decide(&bound, &bound).value, value, "decide agrees with eval: {expression}");
        // Whatever the canonical form is, it must mean the same.
        let again = Expr::parse_as(&expr.to_string(), dialect).expect("the canonical form parses");
        assert_eq!(again, expr, "{expression} printed as {expr}");
        assert_eq!(again.to_string(), expr.to_string());
        value
    }

    pub(crate) fn bind(&self, expr: &Expr) -> (Program, Bound<'_>) {
        let mut table = KeyTable::new(self.types.clone());
        let program = expr.bind(&mut table).expect("a key table refuses nothing");
        (program, Bound { case: self, table })
    }
}

/// A case seen through the ids of a table.
pub(crate) struct Bound<'a> {
    pub(crate) case: &'a Case,
    pub(crate) table: KeyTable,
}

impl Record for Bound<'_> {
    fn get(&self, key: KeyId) -> Option<Value<'_>> {
        let found = match &self.table.keys()[key.0 as usize] {
            Key::Name(name) => self.case.metadata.iter().find(|(key, _)| **key == **name).map(|(_, value)| value),
            Key::Attribute(attribute) => {
                self.case.attributes.iter().find(|(key, _)| key == attribute).map(|(_, value)| value)
            }
        };
        found.map(Value::Parsed)
    }
}

impl Context for Bound<'_> {
    fn get(&self, slot: SlotId) -> Option<&str> {
        let (scope, name) = &self.table.slots()[slot.0 as usize];
        let values = match scope {
            SlotScope::Caller => &self.case.caller,
            SlotScope::Request => &self.case.request,
        };
        values.iter().find(|(key, _)| **key == **name).map(|(_, value)| value.as_str())
    }
}

#[test]
fn what_threads_share_can_be_shared() {
    fn shared<T: Send + Sync + Clone>() {}
    shared::<Expr>();
    shared::<Program>();
    shared::<KeyTable>();
    shared::<Parsed>();
}
