//! Fluss ⇄ Paimon, pure: types, options, partition values, system columns, names.
