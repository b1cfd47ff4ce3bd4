//! Power loss at every kind of moment.
