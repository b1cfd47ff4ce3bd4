//! Lists of extended attributes: for each, in name order,
//! `name_len: u8, value_len: u32, name, value`, little-endian.

/// The beginning of the names of ACLs.
pub const ACL_PREFIX: &[u8] = b"system.posix_acl_";

/// Returns the name and the bytes of the first attribute, and the rest; `None` where the list is
/// malformed.
fn first(list: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&n, rest) = list.split_first()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(n.into())?;
    let (_, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some((name, &list[..list.len() - rest.len()], rest))
}

fn each<'a>(mut list: &'a [u8], f: &mut dyn FnMut(&'a [u8], &'a [u8])) -> Option<()> {
    while !list.is_empty() {
        let (name, whole, rest) = first(list)?;
        f(name, whole);
        list = rest;
    }
    Some(())
}

/// Returns the ACLs of a list, as a list; `None` if it is malformed.
pub fn acls(list: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    each(list, &mut |name, whole| {
        if name.starts_with(ACL_PREFIX) {
            out.extend_from_slice(whole);
        }
    })?;
    debug_assert!(out.len() <= list.len(), "attributes are left out, none comes to them");
    Some(out)
}

/// Returns a list with these ACLs in place of those it has; `None` if one of the two is malformed.
pub fn with_acls(list: &[u8], acls: &[u8]) -> Option<Vec<u8>> {
    let mut all: Vec<(&[u8], &[u8])> = Vec::new();
    each(list, &mut |name, whole| {
        if !name.starts_with(ACL_PREFIX) {
            all.push((name, whole));
        }
    })?;
    each(acls, &mut |name, whole| {
        if name.starts_with(ACL_PREFIX) {
            all.push((name, whole));
        }
    })?;
    all.sort_by_key(|a| a.0);
    let out: Vec<u8> = all.into_iter().flat_map(|a| a.1).copied().collect();
    debug_assert!(out.len() <= list.len() + acls.len(), "attributes that are in neither list");
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &[u8], value: &[u8]) -> Vec<u8> {
        [&[name.len() as u8][..], &(value.len() as u32).to_le_bytes(), name, value].concat()
    }

    #[test]
    fn acls_take_the_place_of_acls_and_of_nothing_else() {
        let (a, d) = (&b"system.posix_acl_access"[..], &b"system.posix_acl_default"[..]);
        let list = [one(b"security.x", b"1"), one(a, b"old"), one(d, b"gone"), one(b"user.y", b"")].concat();
        assert_eq!(acls(&list).unwrap(), [one(a, b"old"), one(d, b"gone")].concat());
        let with = [one(b"security.x", b"1"), one(a, b"new"), one(b"user.y", b"")].concat();
        assert_eq!(with_acls(&list, &one(a, b"new")).unwrap(), with);
        assert_eq!(with_acls(&list, b"").unwrap(), [one(b"security.x", b"1"), one(b"user.y", b"")].concat());
        for cut in 1..with.len() {
            assert!(acls(&with[..cut]).is_none() || [16, 47].contains(&cut), "{cut}");
        }
    }
}
