//! The expression language against its specification, one module per behaviour.

mod allocation;
mod exact_points;
mod lint;
mod missing_keys;
mod properties;
mod reference_page;
mod routing_table;
mod seata_dialect;
mod support;
