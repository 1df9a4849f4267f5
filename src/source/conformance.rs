//! What every implementation of the source traits has to do.
