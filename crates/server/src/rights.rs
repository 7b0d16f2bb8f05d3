//! Checks of a user's rights to a command, its keys and its channels.

use crate::command::ChannelArgs;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, is};
use crate::table::Entry;
use crate::users::User;

/// Refuses a command that the user may not use with these arguments.
///
/// # Errors
/// [`CommandError::Reply`], worded as Redis does.
pub(crate) fn permit(user: &User, entry: &Entry, args: &[Arg<'_>]) -> Outcome {
    if user.everything {
        return Ok(());
    }
    let spec = entry.spec;
    let for_admins = args
        .get(1)
        .is_some_and(|word| spec.admin_subcommands.iter().any(|known| is(word, known)));
    if !user.may(entry) || !user.admin && for_admins {
        let subcommand = spec
            .has_subcommands()
            .then(|| args.get(1))
            .flatten()
            .map(|word| format!("|{}", String::from_utf8_lossy(word).to_lowercase()));
        return Err(CommandError::reply(format!(
            "NOPERM this user has no permissions to run the '{}{}' command",
            spec.name,
            subcommand.unwrap_or_default()
        )));
    }
    let places = spec.keys.places(args);
    let mut keys = places.iter().filter_map(|at| args.get(*at));
    let allowed = if spec.reads_all_keys {
        user.may_touch_all()
    } else {
        keys.all(|key| user.may_touch(key))
    };
    if !allowed {
        return Err(CommandError::reply(
            "NOPERM this user has no permissions to access one of the keys used as arguments",
        ));
    }
    if let Some(reads_other_keys) = spec.reads_other_keys
        && !user.may_touch_all()
        && let Some(option) = reads_other_keys(args)
    {
        return Err(CommandError::reply(format!(
            "ERR {option} option of SORT denied due to insufficient ACL permissions"
        )));
    }
    let (channels, is_pattern) = match spec.channels {
        ChannelArgs::None => return Ok(()),
        ChannelArgs::First => (args.get(1..2), false),
        ChannelArgs::All => (args.get(1..), false),
        ChannelArgs::AllPatterns => (args.get(1..), true),
    };
    let mut channels = channels.unwrap_or_default().iter();
    if !channels.all(|channel| user.may_hear(channel, is_pattern)) {
        return Err(CommandError::reply(
            "NOPERM this user has no permissions to access one of the channels used as arguments",
        ));
    }
    Ok(())
}
