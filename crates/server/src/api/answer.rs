//! Answers as JSON bytes.
//!
//! Rows are written straight into the body: no tree of values in between, and the digits of a number are the digits that
//! are stored.

use metaroute_cluster::Meta;
use metaroute_cluster::protocol::Row;
use metaroute_store::{ColumnType, Schema};

use super::value::{self, Ints, json_text};

/// Writes rows of one query.
#[derive(Clone, Debug)]
pub(super) struct RowWriter {
    /// `,"name":` of all fields behind each other.
    names: Vec<u8>,
    /// Where each one's ends, and its type.
    fields: Vec<(usize, ColumnType)>,
    ints: Ints,
}

impl RowWriter {
    /// For rows whose values are the columns at these ordinals.
    pub(super) fn new(store: &Schema, fields: &[usize], ints: Ints) -> RowWriter {
        let mut names = Vec::with_capacity(fields.len() * 16);
        let field = |&at: &usize| {
            let column = &store.columns()[at];
            names.push(b',');
            json_text(&mut names, &column.name);
            names.push(b':');
            (names.len(), column.ty)
        };
        let fields = fields.iter().map(field).collect();
        RowWriter { names, fields, ints }
    }

    /// Appends one row as an object.
    pub(super) fn write(&self, out: &mut Vec<u8>, row: &Row) {
        out.push(b'{');
        // The first one without its comma.
        let mut from = 1;
        for (value, &(to, ty)) in row.values.iter().zip(&self.fields) {
            out.extend_from_slice(&self.names[from..to]);
            value::write(out, value, ty, self.ints);
            from = to;
        }
        out.push(b'}');
    }

    /// Appends one row and a line feed. A JSON column may hold line feeds between its tokens; here each row is a line.
    pub(super) fn write_line(&self, out: &mut Vec<u8>, row: &Row) {
        let start = out.len();
        self.write(out, row);
        for byte in &mut out[start..] {
            // Inside strings both are escaped, so these are between tokens.
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        out.push(b'\n');
    }
}

/// `{"rows":[…],"next":…,"meta":{…}}`.
pub(super) fn page(writer: &RowWriter, rows: &[Row], next: Option<&str>, meta: &Meta) -> Vec<u8> {
    let mut out = Vec::with_capacity(512 + rows.len() * 192);
    out.extend_from_slice(b"{\"rows\":[");
    for (at, row) in rows.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        writer.write(&mut out, row);
    }
    out.extend_from_slice(b"],\"next\":");
    json_text(&mut out, &next);
    out.extend_from_slice(b",\"meta\":");
    meta.write_json(&mut out);
    out.push(b'}');
    out
}

/// `{"row":{…},"meta":{…}}`.
pub(super) fn row(writer: &RowWriter, row: &Row, meta: &Meta) -> Vec<u8> {
    let mut out = Vec::with_capacity(1_024);
    out.extend_from_slice(b"{\"row\":");
    writer.write(&mut out, row);
    out.extend_from_slice(b",\"meta\":");
    meta.write_json(&mut out);
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use metaroute_cluster::protocol::Row;
    use metaroute_store::{Value, Version};

    use super::*;

    #[test]
    fn a_row_is_one_line_whatever_its_json_column_looks_like() {
        let text = "stores:\n- {name: s, id: i, tenant: t, columns: {i: u64, t: u64, j: json, x: string}}\n";
        let stores = crate::stores::parse("s.yaml", text, metaroute_registry::document::Format::Yaml).expect("legal");
        let values =
            vec![Value::U64(u64::MAX), Value::Json("{\"a\":\n [1,\r\n 2]}".into()), Value::String("two\nlines".into())];
        let row = Row { id: u64::MAX, tenant: 0, time: None, version: Version::from(1), values };
        let writer = RowWriter::new(&stores[0], &[0, 2, 3], Ints::Strings);
        let mut line = Vec::new();
        writer.write_line(&mut line, &row);
        let line = String::from_utf8(line).expect("UTF-8");
        assert_eq!(line, "{\"i\":\"18446744073709551615\",\"j\":{\"a\":  [1,   2]},\"x\":\"two\\nlines\"}\n");
        let mut plain = Vec::new();
        RowWriter::new(&stores[0], &[0, 2], Ints::Numbers).write(&mut plain, &row);
        assert_eq!(plain, b"{\"i\":18446744073709551615,\"j\":{\"a\":\n [1,\r\n 2]}}");
    }
}
