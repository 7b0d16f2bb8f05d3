//! Replies that several families of commands have: pairs, scores, members.

use crate::data::sorted_set::Scored;
use crate::parse::double;
use crate::reply::{Out, Protocol};

/// Writes the header of an array of pairs: a flat array in RESP2, an array of arrays in RESP3.
pub(crate) fn pairs(out: &mut Out<'_>, count: usize) {
    out.array(if out.protocol() == Protocol::Resp3 {
        count
    } else {
        2 * count
    });
}

/// Writes the header of one of these [`pairs`].
pub(crate) fn pair(out: &mut Out<'_>) {
    if out.protocol() == Protocol::Resp3 {
        out.array(2);
    }
}

/// Replies with a number.
pub(crate) fn reply_double(out: &mut Out<'_>, number: f64) {
    out.double_text(&double::text(number));
}

/// Replies with members, and with their scores if they are wanted.
pub(crate) fn reply_members(out: &mut Out<'_>, found: &[Scored], with_scores: bool) {
    if with_scores {
        pairs(out, found.len());
    } else {
        out.array(found.len());
    }
    for one in found {
        reply_member(out, one, with_scores);
    }
}

pub(crate) fn reply_member(out: &mut Out<'_>, (member, score): &Scored, with_scores: bool) {
    if with_scores {
        pair(out);
    }
    out.bulk(member);
    if with_scores {
        reply_double(out, *score);
    }
}
