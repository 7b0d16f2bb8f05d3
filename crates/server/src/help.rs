//! `HELP` of commands with subcommands.

use crate::command::Spec;
use crate::error::CommandError;
use crate::parse::{Arg, is};
use crate::reply::Out;

/// Replies to a command if it asks for its help. Returns false if it does not.
///
/// # Errors
/// [`CommandError::Reply`]: there are further arguments.
pub(crate) fn answer(
    spec: &Spec,
    args: &[Arg<'_>],
    out: &mut Out<'_>,
) -> Result<bool, CommandError> {
    let asked = args.get(1).is_some_and(|word| is(word, "help"));
    if !asked || !spec.has_subcommands() {
        return Ok(false);
    }
    if args.len() > 2 {
        return Err(CommandError::arity(&format!("{}|help", spec.name)));
    }
    let name = spec.name.to_uppercase();
    out.array(2 * spec.help.len() + 3);
    out.status(&format!(
        "{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ));
    for (usage, meaning) in spec.help.iter().chain(&[("HELP", "Print this help.")]) {
        out.status(usage);
        out.status(&format!("    {meaning}"));
    }
    Ok(true)
}
