//! Lists of extended attributes: for each, in name order,
//! `name_len: u8, value_len: u32, name, value`, little-endian.

/// The beginning of the names of ACLs.
pub const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// The capabilities that a program runs with.
pub const CAPABILITY: &[u8] = b"security.capability";
/// The most bytes of these that are a right.
pub const CAPABILITY_MAX: usize = 64;

/// Bytes of an attribute beside its name and value.
const HEAD: usize = 5;

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

/// Returns whether a list has an attribute of this name; false if it is malformed before that.
pub fn has(list: &[u8], name: &[u8]) -> bool {
    debug_assert!(!name.is_empty(), "an attribute has a name");
    let mut found = false;
    let _ = each(list, &mut |its, _| found |= its == name);
    found
}

/// Returns the attributes of a list that are rights, as a list: the ACLs, and of a file its
/// capabilities, which are empty where it has none. `None` if the list is malformed.
pub fn rights(list: &[u8], is_file: bool) -> Option<Vec<u8>> {
    let (mut acls, mut capability) = (Vec::new(), None);
    each(list, &mut |name, whole| {
        if name.starts_with(ACL_PREFIX) {
            acls.extend_from_slice(whole);
        } else if name == CAPABILITY {
            capability = Some(whole);
        }
    })?;
    debug_assert!(acls.len() <= list.len(), "attributes are left out, none comes to them");
    if !is_file {
        return Some(acls);
    }
    let mut out = match capability {
        // One that no kernel knows gives nobody a right.
        Some(whole) if whole.len() > HEAD + CAPABILITY.len() + CAPABILITY_MAX => return Some(acls),
        Some(whole) => whole.to_vec(),
        None => [&[CAPABILITY.len() as u8][..], &[0; 4], CAPABILITY].concat(),
    };
    out.extend(acls);
    Some(out)
}

/// Returns a list with these rights in place of those it has; capabilities stay as they are where
/// the rights say nothing of them. `None` if one of the two is malformed.
pub fn with_rights(list: &[u8], rights: &[u8]) -> Option<Vec<u8>> {
    let mut new: Vec<(&[u8], &[u8])> = Vec::new();
    each(rights, &mut |name, whole| {
        if name.starts_with(ACL_PREFIX) || name == CAPABILITY {
            new.push((name, whole));
        }
    })?;
    let says = new.iter().any(|a| a.0 == CAPABILITY);
    new.retain(|(name, whole)| *name != CAPABILITY || whole.len() > HEAD + CAPABILITY.len());
    each(list, &mut |name, whole| {
        if !name.starts_with(ACL_PREFIX) && (name != CAPABILITY || !says) {
            new.push((name, whole));
        }
    })?;
    new.sort_by_key(|a| a.0);
    let out: Vec<u8> = new.into_iter().flat_map(|a| a.1).copied().collect();
    debug_assert!(out.len() <= list.len() + rights.len(), "attributes that are in neither list");
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &[u8], value: &[u8]) -> Vec<u8> {
        [&[name.len() as u8][..], &(value.len() as u32).to_le_bytes(), name, value].concat()
    }

    #[test]
    fn rights_take_the_place_of_rights_and_of_nothing_else() {
        let (a, d) = (&b"system.posix_acl_access"[..], &b"system.posix_acl_default"[..]);
        let list = [one(b"security.x", b"1"), one(a, b"old"), one(d, b"gone"), one(b"user.y", b"")].concat();
        let acls = [one(a, b"old"), one(d, b"gone")].concat();
        assert_eq!(rights(&list, false).unwrap(), acls);
        assert_eq!(rights(&list, true).unwrap(), [one(CAPABILITY, b""), acls].concat());
        let with = [one(b"security.x", b"1"), one(a, b"new"), one(b"user.y", b"")].concat();
        assert_eq!(with_rights(&list, &one(a, b"new")).unwrap(), with);
        assert_eq!(
            with_rights(&list, b"").unwrap(),
            [one(b"security.x", b"1"), one(b"user.y", b"")].concat()
        );
        for cut in 1..with.len() {
            assert!(rights(&with[..cut], true).is_none() || [16, 47].contains(&cut), "{cut}");
        }
    }

    #[test]
    fn capabilities_stay_where_nothing_is_said_of_them() {
        let (cap, user) = (one(CAPABILITY, &[2; 20]), one(b"user.y", b"1"));
        let (list, a) = ([&cap[..], &user].concat(), one(b"system.posix_acl_access", b"a"));
        assert_eq!(rights(&list, true).unwrap(), cap);
        assert_eq!(rights(&list, false).unwrap(), b"");
        // As a log of an earlier version has it: of ACLs alone.
        assert_eq!(with_rights(&list, &a).unwrap(), [&cap[..], &a, &user].concat());
        let none = rights(&user, true).unwrap();
        assert_eq!(with_rights(&list, &none).unwrap(), user);
        assert_eq!(with_rights(&user, &cap).unwrap(), list);
        let odd = one(CAPABILITY, &[2; CAPABILITY_MAX + 1]);
        assert_eq!(rights(&odd, true).unwrap(), b"");
        assert_eq!(with_rights(&odd, &none).unwrap(), b"");
    }
}
