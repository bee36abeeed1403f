//! The expression language against its specification, one module per behaviour.

mod exact_points;
mod missing_keys;
mod routing_table;
mod seata_dialect;
mod support;
