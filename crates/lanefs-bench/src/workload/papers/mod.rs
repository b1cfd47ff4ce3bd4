//! The macro workloads of the papers, parameters as published.
