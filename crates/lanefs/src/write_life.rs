//! How long what is written will be wanted, as a program says.

/// The time for which a file's content will be wanted, as `fcntl(2)` has it for `F_SET_RW_HINT`,
/// with the same numbers. See [`File::set_write_life`](crate::File::set_write_life).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum WriteLife {
    /// Nobody has said anything.
    #[default]
    NotSet = 0,
    /// There is nothing to say.
    None = 1,
    /// It will soon be overwritten or removed.
    Short = 2,
    /// Between the two.
    Medium = 3,
    /// It stays for long.
    Long = 4,
    /// It stays for as long as anything does.
    Extreme = 5,
}

impl WriteLife {
    const ALL: [WriteLife; 6] = [
        WriteLife::NotSet,
        WriteLife::None,
        WriteLife::Short,
        WriteLife::Medium,
        WriteLife::Long,
        WriteLife::Extreme,
    ];

    /// Returns the one with this number, as `F_SET_RW_HINT` has them (0 to 5).
    pub fn from_hint(number: u64) -> Option<WriteLife> {
        let found = WriteLife::ALL.get(usize::try_from(number).ok()?).copied();
        debug_assert!(found.is_none_or(|life| life.hint() == number), "the numbers are the order");
        found
    }

    /// Returns its number, as `F_GET_RW_HINT` has it.
    pub fn hint(self) -> u64 {
        self as u64
    }
}
