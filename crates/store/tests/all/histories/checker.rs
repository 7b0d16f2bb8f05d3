//! A checker of list-append histories, after Kingsbury and Alvaro's *Elle* (VLDB 2020).
//!
//! Values are lists. Transactions append elements, each of which is appended once, and read whole
//! lists. The longest list that was read of a key is the order of its versions. The edges between
//! transactions follow from that:
//!
//! | edge | from | to |
//! | --- | --- | --- |
//! | ww | the one that appended an element | the one that appended the next element |
//! | wr | the one that appended the last element of a list | one that read that list |
//! | rw | one that read a list | the one that appended the next element |
//! | session | a client's transaction | its next one |
//!
//! | anomaly | is |
//! | --- | --- |
//! | G0 | a cycle of ww |
//! | G1a, G1b | a read of an element of an aborted transaction; of one that its transaction appended to again |
//! | G1c | a cycle of ww, wr and session |
//! | G-single | a cycle with one rw |
//! | G-nonadjacent | a cycle in which no rw follows another: none of the ones before |
//! | G2 | any other cycle |
//! | lost, foreign, disordered, internal | an element that is gone, or that nobody appended; lists that are not each other's beginnings; a transaction that does not read its own appends |
//!
//! Snapshot isolation, with a later transaction of a client seeing its earlier ones, allows G2
//! only. Serialisability allows none.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// An operation of a transaction.
#[derive(Clone, Debug)]
pub enum Op {
    Append { key: u64, element: u64 },
    Read { key: u64, list: Vec<u64> },
}

/// A transaction, as its client saw it.
#[derive(Clone, Debug)]
pub struct Txn {
    /// The client; its transactions are in its order.
    pub session: u64,
    pub ops: Vec<Op>,
    pub committed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    G0,
    G1a,
    G1b,
    G1c,
    GSingle,
    GNonadjacent,
    G2,
    Lost,
    Foreign,
    Disordered,
    Internal,
}

/// An anomaly, and the transactions that show it.
#[derive(Clone, Debug)]
pub struct Anomaly {
    pub kind: Kind,
    pub txns: Vec<usize>,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of transactions {:?}", self.kind, self.txns)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    Ww,
    Wr,
    Rw,
    Session,
}

#[derive(Default)]
struct Graph {
    edges: Vec<Vec<(u32, Edge)>>,
}

/// The transaction that appended each element, and whether the element was its last one for the
/// key.
type Appended = HashMap<u64, (usize, bool)>;

/// Returns the anomalies of a history, the worst first, one of each kind.
pub fn check(history: &[Txn]) -> Vec<Anomaly> {
    let mut found: BTreeMap<Kind, Vec<usize>> = BTreeMap::new();
    let mut note = |kind, txns: &[usize]| {
        found.entry(kind).or_insert_with(|| txns.to_vec());
    };
    let appended = appended(history);
    for (t, txn) in history.iter().enumerate().filter(|(_, txn)| txn.committed) {
        if !reads_itself(txn) {
            note(Kind::Internal, &[t]);
        }
    }
    let orders = orders(history, &mut note);
    let mut place: HashMap<u64, usize> = HashMap::new();
    for order in orders.values() {
        for (i, element) in order.iter().enumerate() {
            if place.insert(*element, i).is_some() {
                note(Kind::Disordered, &[]);
            }
            match appended.get(element) {
                None => note(Kind::Foreign, &[]),
                Some((t, _)) if !history[*t].committed => note(Kind::G1a, &[*t]),
                Some(_) => {}
            }
        }
    }
    for (t, txn) in history.iter().enumerate().filter(|(_, txn)| txn.committed) {
        for op in &txn.ops {
            match op {
                Op::Append { element, .. } if !place.contains_key(element) => {
                    note(Kind::Lost, &[t])
                }
                Op::Read { list, .. } => {
                    if let Some((by, false)) = list.last().and_then(|last| appended.get(last))
                        && *by != t
                    {
                        note(Kind::G1b, &[*by, t]);
                    }
                }
                Op::Append { .. } => {}
            }
        }
    }
    if let Some((kind, cycle)) = graph(history, &orders, &appended).worst_cycle() {
        note(kind, &cycle);
    }
    found
        .into_iter()
        .map(|(kind, txns)| Anomaly { kind, txns })
        .collect()
}

fn appended(history: &[Txn]) -> Appended {
    let mut appended = Appended::new();
    for (t, txn) in history.iter().enumerate() {
        let mut last: HashMap<u64, u64> = HashMap::new();
        for op in &txn.ops {
            if let Op::Append { key, element } = op {
                assert!(
                    appended.insert(*element, (t, true)).is_none(),
                    "appended twice"
                );
                if let Some(before) = last.insert(*key, *element) {
                    appended.get_mut(&before).expect("appended just now").1 = false;
                }
            }
        }
    }
    appended
}

/// Returns the anomalies that snapshot isolation does not allow.
pub fn check_snapshot_isolation(history: &[Txn]) -> Vec<Anomaly> {
    let mut found = check(history);
    found.retain(|anomaly| anomaly.kind != Kind::G2);
    found
}

/// Returns true if each list that a transaction reads ends with its own appends and is otherwise
/// the same each time.
fn reads_itself(txn: &Txn) -> bool {
    let mut known: HashMap<u64, (Option<Vec<u64>>, Vec<u64>)> = HashMap::new();
    for op in &txn.ops {
        match op {
            Op::Append { key, element } => known.entry(*key).or_default().1.push(*element),
            Op::Read { key, list } => {
                let (base, own) = known.entry(*key).or_default();
                let Some(seen) = list.strip_suffix(own.as_slice()) else {
                    return false;
                };
                if base.get_or_insert_with(|| seen.to_vec()) != seen {
                    return false;
                }
            }
        }
    }
    true
}

/// Returns the longest list of each key that a committed transaction read. All others are
/// beginnings of it.
fn orders(history: &[Txn], note: &mut impl FnMut(Kind, &[usize])) -> HashMap<u64, Vec<u64>> {
    let mut longest: HashMap<u64, (usize, &Vec<u64>)> = HashMap::new();
    let reads = || {
        let committed = history.iter().enumerate().filter(|(_, txn)| txn.committed);
        committed.flat_map(|(t, txn)| txn.ops.iter().map(move |op| (t, op)))
    };
    for (t, op) in reads() {
        if let Op::Read { key, list } = op {
            let (by, known) = longest.entry(*key).or_insert((t, list));
            if list.len() > known.len() {
                (*by, *known) = (t, list);
            }
        }
    }
    for (t, op) in reads() {
        if let Op::Read { key, list } = op
            && !longest[key].1.starts_with(list)
        {
            note(Kind::Disordered, &[longest[key].0, t]);
        }
    }
    longest
        .into_iter()
        .map(|(key, (_, list))| (key, list.clone()))
        .collect()
}

fn graph(history: &[Txn], orders: &HashMap<u64, Vec<u64>>, appended: &Appended) -> Graph {
    let mut graph = Graph {
        edges: vec![Vec::new(); history.len()],
    };
    let by = |element: &u64| appended.get(element).map(|(t, _)| *t);
    let mut add = |from: Option<usize>, to: Option<usize>, edge: Edge| {
        if let (Some(from), Some(to)) = (from, to)
            && from != to
            && history[from].committed
            && history[to].committed
        {
            graph.edges[from].push((to as u32, edge));
        }
    };
    for order in orders.values() {
        for pair in order.windows(2) {
            add(by(&pair[0]), by(&pair[1]), Edge::Ww);
        }
    }
    let mut sessions: HashMap<u64, usize> = HashMap::new();
    for (t, txn) in history.iter().enumerate().filter(|(_, txn)| txn.committed) {
        add(sessions.insert(txn.session, t), Some(t), Edge::Session);
        for op in &txn.ops {
            if let Op::Read { key, list } = op {
                add(list.last().and_then(by), Some(t), Edge::Wr);
                // Its own elements at the end of the list do not count.
                let others = list
                    .iter()
                    .rposition(|e| by(e) != Some(t))
                    .map_or(0, |i| i + 1);
                let next = orders[key].get(others..).unwrap_or(&[]);
                add(
                    Some(t),
                    next.iter().map(by).find(|next| *next != Some(t)).flatten(),
                    Edge::Rw,
                );
            }
        }
    }
    graph
}

impl Graph {
    /// Returns a cycle of the worst kind that there is.
    fn worst_cycle(&self) -> Option<(Kind, Vec<usize>)> {
        let among = |kinds: &[Edge]| {
            let kinds = kinds.to_vec();
            move |_: u8, edge: Edge| kinds.contains(&edge).then_some(0)
        };
        let ww = self.cycle(1, among(&[Edge::Ww]));
        let flow = self.cycle(1, among(&[Edge::Ww, Edge::Wr, Edge::Session]));
        let any = self.cycle(1, |_, _| Some(0));
        // In state 1 after an rw, which no other one may follow.
        let apart = self.cycle(2, |state, edge| match (state, edge) {
            (1, Edge::Rw) => None,
            (_, Edge::Rw) => Some(1),
            _ => Some(0),
        });
        if let Some(cycle) = ww {
            Some((Kind::G0, cycle))
        } else if let Some(cycle) = flow {
            Some((Kind::G1c, cycle))
        } else if let Some(cycle) = apart {
            let kind = if self.fewest_rws(&cycle) {
                Kind::GSingle
            } else {
                Kind::GNonadjacent
            };
            Some((kind, cycle))
        } else {
            any.map(|cycle| (Kind::G2, cycle))
        }
    }

    /// Returns transactions that are together in a cycle, each step of which `step` allows from the
    /// state that it is in.
    fn cycle(&self, states: usize, step: impl Fn(u8, Edge) -> Option<u8>) -> Option<Vec<usize>> {
        let n = self.edges.len() * states;
        // Tarjan's algorithm, with a stack of its own.
        let (mut index, mut low) = (vec![u32::MAX; n], vec![0u32; n]);
        let (mut open, mut on) = (Vec::new(), vec![false; n]);
        let mut count = 0;
        for root in 0..n {
            if index[root] != u32::MAX {
                continue;
            }
            let mut calls: Vec<(usize, usize)> = vec![(root, 0)];
            while let Some((node, at)) = calls.pop() {
                if at == 0 {
                    (index[node], low[node]) = (count, count);
                    count += 1;
                    open.push(node);
                    on[node] = true;
                }
                let (txn, state) = (node / states, (node % states) as u8);
                let edges = &self.edges[txn];
                let mut descended = false;
                for (i, (to, edge)) in edges.iter().enumerate().skip(at) {
                    let Some(next) = step(state, *edge) else {
                        continue;
                    };
                    let next = *to as usize * states + usize::from(next);
                    if index[next] == u32::MAX {
                        calls.push((node, i + 1));
                        calls.push((next, 0));
                        descended = true;
                        break;
                    }
                    if on[next] {
                        low[node] = low[node].min(index[next]);
                    }
                }
                if descended {
                    continue;
                }
                if let Some((parent, _)) = calls.last() {
                    low[*parent] = low[*parent].min(low[node]);
                }
                if low[node] == index[node] {
                    let from = open.iter().rposition(|other| *other == node);
                    let component = open.split_off(from.expect("it is open"));
                    for member in &component {
                        on[*member] = false;
                    }
                    if component.len() > 1 {
                        let mut txns: Vec<usize> =
                            component.iter().map(|member| member / states).collect();
                        txns.sort_unstable();
                        txns.dedup();
                        return Some(txns);
                    }
                }
            }
        }
        None
    }

    /// Returns true if a cycle within these transactions has only one rw edge.
    fn fewest_rws(&self, txns: &[usize]) -> bool {
        let inside = |t: usize| txns.binary_search(&t).is_ok();
        txns.iter().any(|from| {
            let rws = self.edges[*from]
                .iter()
                .filter(|(_, edge)| *edge == Edge::Rw);
            rws.into_iter().any(|(start, _)| {
                let mut seen = vec![*start as usize];
                let mut next = 0;
                while next < seen.len() {
                    let at = seen[next];
                    next += 1;
                    if at == *from {
                        return true;
                    }
                    for (to, edge) in &self.edges[at] {
                        let to = *to as usize;
                        if *edge != Edge::Rw && inside(to) && !seen.contains(&to) {
                            seen.push(to);
                        }
                    }
                }
                false
            })
        })
    }
}
