//! Execution of a plan, as a whole or not at all.

use ratelimit_crash::{Point, reach};
use ratelimit_datapath::{Attachment, Datapath, DatapathError};
use ratelimit_policy::desired::Policy;
use ratelimit_policy::plan::Plan;

/// Executed step that can be undone.
enum Done<'a> {
    Attached(&'a str),
    Applied(&'a Policy),
    Detached(&'a str),
}

/// Attaches, applies and detaches, with the steps most likely to fail first. `before` is the policy in force. On an
/// error, undoes the executed steps, and logs those that cannot be undone.
pub(super) fn carry_out<D: Datapath>(
    datapath: &mut D,
    before: &Policy,
    plan: &Plan,
) -> Result<Vec<(String, Attachment)>, DatapathError> {
    let mut done = Vec::new();
    let outcome = steps(datapath, before, plan, &mut done);
    if outcome.is_err() {
        for step in done.into_iter().rev() {
            if let Err(error) = take_back(datapath, &step) {
                tracing::error!("undo a change: {:#}", anyhow::Error::from(error));
            }
        }
    }
    outcome
}

fn steps<'a, D: Datapath>(
    datapath: &mut D,
    before: &'a Policy,
    plan: &'a Plan,
    done: &mut Vec<Done<'a>>,
) -> Result<Vec<(String, Attachment)>, DatapathError> {
    let mut attached = Vec::new();
    for interface in &plan.attach {
        attached.push((interface.clone(), datapath.attach(interface)?));
        done.push(Done::Attached(interface));
    }
    reach(Point::CarryAttached);
    if let Some(policy) = &plan.policy {
        datapath.apply(policy)?;
        done.push(Done::Applied(before));
    }
    reach(Point::CarryApplied);
    for interface in &plan.detach {
        datapath.detach(interface)?;
        done.push(Done::Detached(interface));
    }
    reach(Point::CarryDetached);
    Ok(attached)
}

fn take_back<D: Datapath>(datapath: &mut D, step: &Done<'_>) -> Result<(), DatapathError> {
    match step {
        Done::Attached(interface) => datapath.detach(interface),
        Done::Applied(before) => datapath.apply(before),
        Done::Detached(interface) => datapath.attach(interface).map(|_| ()),
    }
}
