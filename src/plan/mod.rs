//! Facts, gathered concurrently → splits (pure).
