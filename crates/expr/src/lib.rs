//! The expression language that narrows instances and rows by metadata.
