//! The transitions: what each thread, the sealer, the committer and each fsync can do next.

use super::*;

/// The name of a step, made only where somebody reads it.
macro_rules! say {
    ($p:expr, $($a:tt)*) => { if $p.named { format!($($a)*) } else { String::new() } };
}

/// The next states, each with its name, or how the protocol broke on the way there.
pub(super) type Next = Vec<(String, Result<State, String>)>;

impl State {
    pub(super) fn new(p: &Program) -> State {
        let mut entries: [Entry; KEYS] = Default::default();
        for (e, ino) in entries.iter_mut().zip(p.base) {
            e.ino = ino;
        }
        State {
            epoch: 1,
            entries,
            masks: [0; INODES],
            mover: 0,
            threads: vec![Thread::default(); p.threads.len()],
            lanes: vec![Lane::default(); p.threads.len()],
            groups: vec![],
            sealer: Sealer::default(),
            parts: vec![],
            known: 0,
            fsyncs: vec![Fsync::default(); p.fsyncs.len()],
            batches: vec![],
        }
    }

    pub(super) fn next(&self, p: &Program, m: Fault) -> Next {
        let mut out = Next::new();
        for t in 0..self.threads.len() {
            self.operate(p, m, t, &mut out);
        }
        self.seal(p, m, &mut out);
        self.commit(p, m, &mut out);
        for f in 0..self.fsyncs.len() {
            self.fsync(p, m, f, &mut out);
        }
        out
    }

    fn ino(&self, k: Key) -> Ino {
        self.entries[k as usize].ino
    }

    /// Returns whether a directory exists in memory: the root, or what some entry names.
    fn alive(&self, dir: Ino) -> bool {
        dir == 1 || self.entries.iter().any(|e| e.ino == dir)
    }

    fn is_above(&self, a: Ino, mut dir: Ino) -> bool {
        for _ in 0..KEYS {
            if a == dir {
                return true;
            }
            match (0..KEYS as Key).find(|k| self.ino(*k) == dir) {
                Some(k) => dir = dir_of(k),
                None => return false,
            }
        }
        true
    }

    /// The keys an operation locks, in order. For rmdir and for a rename over a directory also the
    /// keys inside it.
    fn to_lock(&self, p: &Program, m: Fault, op: Op) -> Vec<Key> {
        let mut keys = match op {
            Op::Create(k) | Op::Mkdir(k) | Op::Unlink(k) | Op::Link(_, k) | Op::Rmdir(k) => vec![k],
            Op::Rename(a, b) => vec![a, b],
        };
        let victim = match op {
            Op::Rmdir(k) | Op::Rename(_, k) => self.ino(k),
            _ => 0,
        };
        if p.is_dir(victim) && m != Fault::RmdirLocksNothingInside {
            keys.extend(keys_of(victim));
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns whether an operation is possible now, all its keys being locked.
    fn possible(&self, p: &Program, op: Op) -> bool {
        let file = |i: Ino| i != 0 && !p.is_dir(i);
        let dir = |i: Ino| i != 0 && p.is_dir(i);
        let empty = |d: Ino| keys_of(d).all(|k| self.ino(k) == 0);
        let home = |k: Key| p.is_dir(dir_of(k)) && self.alive(dir_of(k));
        match op {
            Op::Create(k) => home(k) && !dir(self.ino(k)),
            Op::Mkdir(k) => home(k) && self.ino(k) == 0,
            Op::Unlink(k) => file(self.ino(k)),
            Op::Rmdir(k) => dir(self.ino(k)) && empty(self.ino(k)),
            Op::Link(a, b) => home(b) && file(self.ino(a)) && self.ino(b) == 0,
            Op::Rename(a, b) => {
                let (x, y) = (self.ino(a), self.ino(b));
                let fits = y == 0 || file(x) && file(y) || dir(x) && dir(y) && empty(y);
                x != 0 && x != y && home(b) && fits && !(dir(x) && self.is_above(x, dir_of(b)))
            }
        }
    }

    fn free(&mut self, t: usize, lane: bool) {
        for e in self.entries.iter_mut().filter(|e| e.owner == t as u8 + 1) {
            e.owner = 0;
            e.seq += 1;
        }
        if self.mover == t as u8 + 1 {
            self.mover = 0;
        }
        if lane {
            self.lanes[t].locked = false;
        }
    }

    fn operate(&self, p: &Program, m: Fault, t: usize, out: &mut Next) {
        let th = &self.threads[t];
        let Some(&op) = p.threads[t].get(th.op as usize) else { return };
        let step = m.steps()[th.step as usize];
        let mut s = self.clone();
        if th.step == 0 && th.locked == 0 {
            let returned = (0..self.groups.len()).filter(|g| self.groups[*g].returned);
            s.threads[t].before = returned.fold(0, |a, g| a | 1 << g);
        }
        let label = |what: &str| say!(p, "T{t} {op:?}: {what}");
        let reset = |s: &mut State, next_op: bool| {
            let op = s.threads[t].op + u8::from(next_op);
            s.threads[t] = Thread { op, ..Thread::default() };
        };
        match step {
            Step::Lane => {
                if self.lanes[t].locked {
                    return;
                }
                s.lanes[t].locked = true;
            }
            Step::Keys => {
                if let Op::Rename(a, b) = op
                    && p.is_dir(self.ino(a))
                    && dir_of(a) != dir_of(b)
                    && self.mover != t as u8 + 1
                    && m != Fault::NoMoveLock
                {
                    if self.mover != 0 {
                        return;
                    }
                    s.mover = t as u8 + 1;
                    out.push((label("take the move lock"), Ok(s)));
                    return;
                }
                let keys = self.to_lock(p, m, op);
                let mine = |k: &&Key| self.entries[**k as usize].owner != t as u8 + 1;
                if let Some(k) = keys.iter().find(mine) {
                    let e = &mut s.entries[*k as usize];
                    if e.owner != 0 {
                        return;
                    }
                    e.owner = t as u8 + 1;
                    e.seq += 1;
                    s.threads[t].locked += 1;
                    out.push((label("lock a key"), Ok(s)));
                    return;
                }
                if !self.possible(p, op) {
                    s.free(t, true);
                    reset(&mut s, true);
                    out.push((label("fails"), Ok(s)));
                    return;
                }
            }
            Step::Note => {
                if let Op::Link(a, _) = op {
                    let e = &self.entries[a as usize];
                    if e.owner != 0 {
                        return;
                    }
                    s.threads[t].noted = (e.seq, e.ino);
                }
            }
            Step::Mask => s.set_masks(p, op, t),
            Step::Epoch => s.threads[t].epoch = self.epoch,
            Step::Stamp => {
                let mut ts = p.clocks[t].max(self.lanes[t].last + 1);
                if m != Fault::NoTimestampFloor {
                    let mut keys = self.to_lock(p, m, op);
                    if let Op::Link(a, _) = op {
                        keys.push(a);
                    }
                    ts = keys.iter().map(|k| self.entries[*k as usize].last_ts + 1).fold(ts, u8::max);
                }
                s.threads[t].ts = ts;
            }
            Step::Validate => {
                if let Op::Link(a, _) = op {
                    let e = &self.entries[a as usize];
                    if e.owner != 0 || e.seq != th.noted.0 {
                        s.free(t, true);
                        reset(&mut s, false);
                        out.push((label("retries"), Ok(s)));
                        return;
                    }
                }
                s.threads[t].group = s.groups.len() as u8;
                let g = self.effects_of(p, op, t);
                s.groups.push(g);
            }
            Step::Apply => {
                let id = th.group as usize;
                let (epoch, ts) = (th.epoch, th.ts);
                let g = &mut s.groups[id];
                (g.epoch, g.ts, g.appended) = (epoch, ts, true);
                for (k, new, _) in g.effects.clone() {
                    s.entries[k as usize].ino = new;
                }
                for e in s.entries.iter_mut().filter(|e| e.owner == t as u8 + 1) {
                    e.last_ts = ts;
                }
                let lane = &mut s.lanes[t];
                lane.last = ts;
                lane.pending.push(id as u8);
                lane.buffers[epoch as usize % 2].push(id as u8);
                if usize::from(epoch) < s.parts.len()
                    || usize::from(epoch) == s.parts.len() && s.parts[usize::from(epoch) - 1].status > 0
                {
                    out.push((
                        label("append"),
                        Err(format!("O2: group {id} was appended to epoch {epoch}, taken before")),
                    ));
                    return;
                }
            }
            Step::EarlyFree => s.lanes[t].locked = false,
            Step::Free => {
                let id = th.group as usize;
                s.groups[id].returned = true;
                s.free(t, true);
                reset(&mut s, true);
                out.push((label("returns"), Ok(s)));
                return;
            }
        }
        s.threads[t].step += 1;
        let note = say!(p, "{step:?} (e={} ts={})", s.threads[t].epoch, s.threads[t].ts);
        out.push((label(&note), Ok(s)));
    }

    fn set_masks(&mut self, p: &Program, op: Op, t: usize) {
        let g = self.threads[t].group as usize;
        // After the group exists (a mistake) its own effects say what it touches; before, the keys
        // do.
        let applied = self.groups.get(g).is_some_and(|x| x.lane == t as u8 && x.appended && !x.returned);
        let made = if applied { self.groups[g].clone() } else { self.effects_of(p, op, t) };
        let bit = 1 << t;
        for (k, new, old) in made.effects {
            self.entries[k as usize].mask |= bit;
            for i in [new, old, dir_of(k)] {
                self.masks[i as usize] |= bit;
            }
        }
        self.masks[made.new as usize] |= bit;
    }

    /// The group an operation makes in this state.
    fn effects_of(&self, p: &Program, op: Op, t: usize) -> Group {
        let v = |k: Key| self.ino(k);
        let fresh = made_by(t as u8, self.threads[t].op);
        let mut g = Group { lane: t as u8, before: self.threads[t].before, ..Group::default() };
        g.effects = match op {
            Op::Create(k) | Op::Mkdir(k) => {
                g.new = fresh;
                vec![(k, fresh, v(k))]
            }
            Op::Unlink(k) => vec![(k, 0, v(k))],
            Op::Rmdir(k) => {
                g.removed = v(k);
                vec![(k, 0, v(k))]
            }
            Op::Link(_, b) => vec![(b, self.threads[t].noted.1, 0)],
            Op::Rename(a, b) => {
                if p.is_dir(v(a)) {
                    g.removed = v(b);
                    g.moved = dir_of(a) != dir_of(b);
                }
                vec![(a, 0, v(a)), (b, v(a), v(b))]
            }
        };
        g
    }

    fn seal(&self, p: &Program, m: Fault, out: &mut Next) {
        let z = &self.sealer;
        // An fsync that escalates asks for one more seal.
        let wanted = p.seals + self.fsyncs.iter().filter(|f| f.wait > 0).count() as u8;
        let mut s = self.clone();
        if !z.taking {
            if z.done >= wanted {
                return;
            }
            s.sealer = Sealer { taking: true, lane: 0, epoch: self.epoch, done: z.done };
            s.epoch += 1;
            if m == Fault::SealTooEarly && z.done + 1 < wanted {
                s.epoch += 1;
            }
            s.parts.push(Part { set: 0, status: 0 });
            out.push((say!(p, "seal: EPOCH = {}", s.epoch), Ok(s)));
            return;
        }
        let l = z.lane as usize;
        if self.lanes[l].locked {
            return;
        }
        let part = s.parts.len() - 1;
        let mut wrong = None;
        for g in std::mem::take(&mut s.lanes[l].buffers[z.epoch as usize % 2]) {
            if s.groups[g as usize].epoch != z.epoch {
                wrong = Some(format!("O2: the buffer of epoch {} holds a group of another", z.epoch));
            }
            s.parts[part].set |= 1 << g;
            if m == Fault::DroppedAtSeal {
                s.lanes[l].pending.retain(|x| *x != g);
            }
        }
        s.sealer.lane += 1;
        if s.sealer.lane as usize == self.lanes.len() {
            s.sealer = Sealer { done: z.done + 1, ..Sealer::default() };
            s.parts[part].status = 1;
        }
        out.push((say!(p, "seal: take lane {l}"), wrong.map_or(Ok(s), Err)));
    }

    fn release(&mut self, set: Set) {
        for l in &mut self.lanes {
            l.pending.retain(|g| set >> g & 1 == 0);
        }
    }

    fn commit(&self, p: &Program, m: Fault, out: &mut Next) {
        for (i, part) in self.parts.iter().enumerate().filter(|(_, p)| matches!(p.status, 1 | 2)) {
            let mut s = self.clone();
            s.parts[i].status += 1;
            if part.status == 2 && m == Fault::ReleasedOutOfOrder {
                s.release(part.set);
            }
            let what = if part.status == 1 { "write" } else { "flush" };
            out.push((say!(p, "commit {}: {what}", i + 1), Ok(s)));
        }
        if self.parts.get(self.known as usize).is_some_and(|p| p.status == 3) {
            let mut s = self.clone();
            s.release(self.parts[self.known as usize].set);
            s.known += 1;
            out.push((say!(p, "commit {}: known", s.known), Ok(s)));
        }
    }

    /// Returns whether the closure of `set` for inode `x` takes group `j`.
    fn pulls(&self, m: Fault, set: Set, x: Ino, j: u8) -> bool {
        let g = &self.groups[j as usize];
        if g.names(x) || g.in_dir(x) {
            return true;
        }
        if m == Fault::NoClosure {
            return false;
        }
        (0..self.groups.len()).filter(|i| set >> i & 1 == 1).map(|i| &self.groups[i]).any(|a| {
            if m == Fault::OnlyEarlier && g.version() > a.version() {
                return false;
            }
            let key = a.effects.iter().any(|e| g.effects.iter().any(|f| f.0 == e.0));
            let named = a.effects.iter().any(|e| g.names(e.1) || m != Fault::NoRemovedInode && g.names(e.2));
            let parent = m != Fault::NoNewOfParent && a.effects.iter().any(|e| g.new == dir_of(e.0));
            let inside = m != Fault::NoRmdirRule && a.removed != 0 && g.in_dir(a.removed);
            key || named || parent || inside
        })
    }

    /// The lanes an fsync has to look at: those in the masks of its inode and of what it found.
    fn lanes_of(&self, set: Set, x: Ino) -> u8 {
        let mut mask = self.masks[x as usize];
        for k in keys_of(x) {
            mask |= self.entries[k as usize].mask;
        }
        for g in (0..self.groups.len()).filter(|g| set >> g & 1 == 1).map(|g| &self.groups[g]) {
            for (k, new, old) in &g.effects {
                mask |=
                    self.entries[*k as usize].mask | self.masks[*new as usize] | self.masks[*old as usize];
                mask |= self.masks[dir_of(*k) as usize];
            }
            for k in keys_of(g.removed) {
                mask |= self.entries[k as usize].mask;
            }
        }
        mask
    }

    fn fsync(&self, p: &Program, m: Fault, q: usize, out: &mut Next) {
        let (f, x) = (&self.fsyncs[q], p.fsyncs[q]);
        let mut s = self.clone();
        let label = |what: String| say!(p, "F{q} fsync {x}: {what}");
        match f.stage {
            0 => {
                let names = |g: &Group| g.returned && (g.names(x) || g.in_dir(x));
                let must = (0..self.groups.len()).filter(|g| names(&self.groups[*g]));
                s.fsyncs[q].must = must.fold(0, |a, g| a | 1 << g);
                s.fsyncs[q].stage = 1;
                out.push((label("begins".into()), Ok(s)));
            }
            1 => {
                let l = f.lane as usize;
                if self.lanes_of(f.set, x) >> l & 1 == 1 {
                    if self.lanes[l].locked {
                        return;
                    }
                    let in_flight = self.batches.iter().filter(|b| b.status == 1).fold(0, |a, b| a | b.set);
                    for &g in &self.lanes[l].pending {
                        let skip = m == Fault::SkipsInFlight && in_flight >> g & 1 == 1;
                        if s.fsyncs[q].set >> g & 1 == 0 && !skip && self.pulls(m, s.fsyncs[q].set, x, g) {
                            s.fsyncs[q].set |= 1 << g;
                            s.fsyncs[q].grew = true;
                        }
                    }
                }
                let z = &mut s.fsyncs[q];
                z.lane += 1;
                if z.lane as usize == self.lanes.len() {
                    z.lane = 0;
                    let again = std::mem::take(&mut z.grew);
                    let moves = (0..self.groups.len()).any(|g| z.set >> g & 1 == 1 && self.groups[g].moved);
                    if moves && m != Fault::MovesNotEscalated {
                        (z.stage, z.wait) = (6, self.epoch);
                    } else if !again {
                        z.stage = 2;
                    }
                }
                let note = say!(p, "lane {l}, set {:b}", s.fsyncs[q].set);
                out.push((label(note), Ok(s)));
            }
            2 => {
                s.fsyncs[q].batch = s.batches.len() as u8;
                let answered = m == Fault::AnsweredBeforeFlush;
                s.batches.push(Batch { set: f.set, status: 1, must: f.must, answered });
                s.fsyncs[q].stage = 3;
                out.push((label(say!(p, "write {:b}", f.set)), Ok(s)));
            }
            3 => {
                s.batches[f.batch as usize].status = 2;
                s.fsyncs[q].stage = 4;
                out.push((label("flush".into()), Ok(s)));
            }
            4 => {
                s.batches[f.batch as usize].answered = true;
                s.release(f.set);
                s.fsyncs[q].stage = 5;
                out.push((label("answers".into()), Ok(s)));
            }
            6 if self.known >= f.wait => {
                // Nothing of its own: the epochs hold it.
                s.batches.push(Batch { set: 0, status: 2, must: f.must, answered: true });
                s.fsyncs[q].stage = 5;
                out.push((label("answers after a commit".into()), Ok(s)));
            }
            _ => {}
        }
    }
}
