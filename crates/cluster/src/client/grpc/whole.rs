//! Questions that end with their last byte.
//!
//! tonic's body for a single message says that it is over only when it is asked for more, and so hyper ends the request with
//! an empty frame: one packet more for every question, and the shard's process wakes up once more for it. Here the body
//! looks one frame ahead.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;

/// A connection whose requests end with their last byte.
#[derive(Clone, Debug)]
pub(super) struct Whole(pub(super) Channel);

impl Service<http::Request<tonic::body::Body>> for Whole {
    type Response = <Channel as Service<http::Request<tonic::body::Body>>>::Response;
    type Error = <Channel as Service<http::Request<tonic::body::Body>>>::Error;
    type Future = <Channel as Service<http::Request<tonic::body::Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        self.0.call(request.map(|body| tonic::body::Body::new(Ahead { body: Some(body), next: None })))
    }
}

type Item = Result<Frame<Bytes>, Status>;

/// A body that has always asked for the frame after the one it hands out.
struct Ahead<B> {
    /// `None` once it has ended.
    body: Option<B>,
    /// A frame that was asked for already.
    next: Option<Item>,
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Ahead<B> {
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Option<Item>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let item = std::task::ready!(Pin::new(body).poll_frame(context));
        if item.is_none() {
            self.body = None;
        }
        Poll::Ready(item)
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for Ahead<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Item>> {
        let item = match self.next.take() {
            Some(item) => Some(item),
            None => std::task::ready!(self.poll_body(context)),
        };
        if matches!(item, Some(Ok(_)))
            && let Poll::Ready(next) = self.poll_body(context)
        {
            self.next = next;
        }
        Poll::Ready(item)
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.next, &self.body) {
            (None, Some(body)) => body.size_hint(),
            (None, None) => SizeHint::with_exact(0),
            (Some(_), _) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// `None` for a frame that is not there yet.
    struct Frames(VecDeque<Option<Item>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Item>> {
            match self.0.pop_front() {
                Some(None) => Poll::Pending,
                Some(item) => Poll::Ready(item),
                None => Poll::Ready(None),
            }
        }
    }

    fn data(text: &'static str) -> Option<Item> {
        Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))
    }

    /// What comes of each question, and whether the body says that this was all.
    fn walk(frames: Vec<Option<Item>>) -> Vec<(String, bool)> {
        let mut ahead = Ahead { body: Some(Frames(frames.into())), next: None };
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut seen = Vec::new();
        for _ in 0..6 {
            let text = match Pin::new(&mut ahead).poll_frame(&mut context) {
                Poll::Pending => "pending".to_owned(),
                Poll::Ready(None) => "end".to_owned(),
                Poll::Ready(Some(Err(status))) => status.message().to_owned(),
                Poll::Ready(Some(Ok(frame))) => {
                    String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text")
                }
            };
            seen.push((text.clone(), ahead.is_end_stream()));
            if text == "end" {
                break;
            }
        }
        seen
    }

    fn seen(steps: &[(&str, bool)]) -> Vec<(String, bool)> {
        steps.iter().map(|(text, end)| ((*text).to_owned(), *end)).collect()
    }

    #[test]
    fn the_last_frame_says_that_it_is_the_last() {
        assert_eq!(walk(vec![data("a")]), seen(&[("a", true), ("end", true)]));
        assert_eq!(walk(vec![data("a"), data("b")]), seen(&[("a", false), ("b", true), ("end", true)]));
        assert_eq!(walk(vec![]), seen(&[("end", true)]));
    }

    #[test]
    fn what_is_not_there_yet_is_waited_for_and_an_error_is_passed_on() {
        let steps = [("a", false), ("pending", false), ("b", true), ("end", true)];
        assert_eq!(walk(vec![data("a"), None, None, data("b")]), seen(&steps));
        let broken = Some(Err(Status::cancelled("broken")));
        assert_eq!(walk(vec![data("a"), broken]), seen(&[("a", false), ("broken", false), ("end", true)]));
    }
}
