//! MetaStorage: typed tables on an LSM engine.
