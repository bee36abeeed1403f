//! Where a watch goes on. Both interfaces are followed in the same way: at one server of several, by polls that end when its term
//! is another one than the caller's, and by reading the list again whatever the poll said.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::driver::{Cursor, DriverError};

/// Pause after a poll that announced a change which was none, so that a confused server is not asked without end.
pub(super) const CALM: Duration = Duration::from_millis(300);

/// Where a list was read, the term it had there, and a number for what was in it, if it was there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) server: usize,
    /// As answered; terms go up and down, and are compared by the server.
    pub(super) term: i64,
    pub(super) print: Option<u64>,
}

impl Place {
    pub(super) fn cursor(self) -> Cursor {
        let print = self.print.map_or("-".to_owned(), |print| format!("{print:016x}"));
        Cursor::new(format!("{}:{}:{print}", self.server, self.term))
    }

    /// `None` for a cursor of somebody else.
    pub(super) fn of(cursor: &Cursor, servers: usize) -> Option<Self> {
        let mut parts = cursor.as_str().split(':');
        let (server, term, print) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?);
        let print = if print == "-" { None } else { Some(u64::from_str_radix(print, 16).ok()?) };
        (server < servers && parts.next().is_none()).then_some(Self { server, term, print })
    }
}

/// The services whose last watch broke, and the places they were watched from. Whoever watched them does not know whether
/// what was seen still holds, so the next watch answers at once, changed or not; and it comes without a cursor, so what was
/// known is remembered here.
#[derive(Default)]
pub(super) struct Failing(Mutex<HashMap<Box<str>, Option<Place>>>);

/// How a watch begins.
#[derive(Clone, Copy)]
pub(super) struct Start {
    /// `None` when nothing is known of the service.
    pub(super) place: Option<Place>,
    /// The last watch broke.
    pub(super) failed: bool,
}

impl Failing {
    pub(super) fn start(&self, service: &str, after: Option<&Cursor>, servers: usize) -> Start {
        let last = self.services().get(service).copied();
        let place = match after {
            Some(after) => Place::of(after, servers),
            None => last.flatten(),
        };
        Start { place, failed: last.is_some() }
    }

    /// Remembers how a watch ended.
    pub(super) fn note<T>(
        &self,
        service: &str,
        start: Start,
        watched: Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        match &watched {
            Ok(_) => drop(self.services().remove(service)),
            Err(_) => drop(self.services().insert(service.into(), start.place)),
        }
        watched
    }

    fn services(&self) -> MutexGuard<'_, HashMap<Box<str>, Option<Place>>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::driver::ErrorKind;

    proptest! {
        #[test]
        fn a_cursor_comes_back(server in 0usize..4, term: i64, print: Option<u64>) {
            let place = Place { server, term, print };
            prop_assert_eq!(Place::of(&place.cursor(), 4), Some(place));
            prop_assert_eq!(Place::of(&place.cursor(), server), None, "a server that is not there");
        }
    }

    #[test]
    fn a_foreign_cursor_means_starting_over() {
        for text in ["", "7", "0:x:-", "0:1", "0:1:-:", "0:1:zz"] {
            assert_eq!(Place::of(&Cursor::new(text), 1), None, "{text}");
        }
    }

    #[test]
    fn what_a_broken_watch_knew_is_remembered_until_one_succeeds() {
        let failing = Failing::default();
        let place = Place { server: 0, term: 7, print: Some(1) };
        let first = failing.start("s", Some(&place.cursor()), 1);
        assert_eq!((first.place, first.failed), (Some(place), false));
        let broken = failing.note("s", first, Err::<(), _>(DriverError::new(ErrorKind::Unreachable, "gone")));
        assert!(broken.is_err());
        let next = failing.start("s", None, 1);
        assert_eq!((next.place, next.failed), (Some(place), true));
        assert!(!failing.start("other", None, 1).failed);
        failing.note("s", next, Ok(())).expect("it was one");
        assert!(!failing.start("s", None, 1).failed);
    }
}
