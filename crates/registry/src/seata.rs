//! Seata's own registries: the NamingServer, and the metadata interface of a Raft cluster.
//!
//! # NamingServer
//!
//! ```text
//! namingserver://127.0.0.1:8081                                   namespace `public`
//! namingserver://USER:PASSWORD@ns1:8081,ns2:8081/NAMESPACE?cluster=C&heartbeat=5s&poll=10s
//! ```
//!
//! | part | meaning | default |
//! |---|---|---|
//! | path | namespace | `public` |
//! | `cluster` | Seata cluster of instances that name none | `default` |
//! | `heartbeat` | how often a registration is repeated; servers forget a node after 90 s, by a scan every 60 s | `5s` |
//! | `poll` | how long one long poll lasts, after which the list is read again whatever the poll said; at most `30s` | `10s` |
//! | `control-port` | port of the control endpoint written beside the address | the instance's own |
//! | `login-every` | age at which the token of a login is replaced | `29m` |
//! | `tls`, `ca`, `cert`, `key` | HTTPS | off |
//!
//! The servers of one address do not replicate: registrations, heartbeats and deregistrations go to **all** of them, and one
//! is as good as all (the others get it with the next heartbeat). Reading keeps to one server until that fails.
//!
//! **Layout.** The service is Seata's *vgroup*. `POST /naming/v1/register?namespace=N&clusterName=C&unit=U` with
//!
//! ```json
//! {"namespace":"public","clusterName":"default","unit":"orders@10.0.0.1:8091",
//!  "control":{"host":"10.0.0.1","port":8091},"transaction":{"host":"10.0.0.1","port":8091},"internal":null,
//!  "weight":1.0,"healthy":true,"term":1795981232531,"timestamp":1795981232531,"version":null,"role":"MEMBER",
//!  "metadata":{"env":"prod","vGroup":{"orders":"orders@10.0.0.1:8091"},"cluster-type":"default"}}
//! ```
//!
//! - The unit is `SERVICE@ID`, so it is the same after a restart. Seata's own is random, which leaves a mapping on a dead unit.
//! - `term` is a time stamp that grows with every change: the server ignores a node whose term has not grown, metadata or not.
//! - Metadata keeps its kinds. What has no place of its own rides under `metaroute-…`. `vGroup` and `cluster-type` are the
//!   server's own and refused.
//! - Endpoints are never null: the server stores such a node all the same and can expire nobody afterwards.
//! - A vgroup belongs to one cluster, that of whoever registered last; instances of one service in two clusters chase each other.
//!
//! **Reading.** `GET /naming/v1/discovery`, both `namingInstanceList` and `nodeList`. Nodes that are not `MEMBER` have their
//! `role`, `group` and `term` as metadata. The incarnation is `metaroute-incarnation`, else the unit. When the last unit of a
//! vgroup goes, the server lists every node of its cluster; nodes whose `vGroup` does not name the service are not taken for it.
//!
//! **Watching** is `POST /naming/v1/watch`. Terms go up, down and to −1 and are only ever sent back. A server that suddenly knows
//! nothing has lost its memory: others are asked, and for three heartbeats (10 s at least) the old list stays.
//!
//! **Changing** what another process registered is a registration with a higher term; its heartbeats leave that as it is.
//!
//! **Lossy.** Nothing. **Limits.** Only the core's. **Liveness.** An owner that dies is gone after 90 to 150 s.
//!
//! Proven against Seata's released client 2.6.0 (the server is not published, so it is played by a strict double made from its
//! source and from what a real one answered).
//!
//! # Raft
//!
//! ```text
//! seata-raft://USER:PASSWORD@tc1:7091,tc2:7091?poll=10s
//! ```
//!
//! | part | meaning | default |
//! |---|---|---|
//! | `poll`, `login-every`, `tls`, `ca`, `cert`, `key` | as above | |
//! | `stream` | `true` follows the HTTP/2 event stream that servers have since 2.7 instead of long polls | `false` |
//!
//! Discovery only: a node becomes a member by joining the Raft group, which nobody can do from outside. The service is the Raft
//! *group*. `GET /metadata/v1/cluster?group=G`, `POST /metadata/v1/watch?timeout=MS` with the form `G=TERM`. All nodes are
//! listed, followers and learners too, each with `role`, `group`, `term` and, where the server says it, `version` as metadata: a
//! rule such as `role == LEADER` is for whoever must talk to the leader. Servers before 2.5 have this interface on the
//! HTTP port, later ones on the service port. A server that has no leader at the moment lists nobody: that is reported as
//! not usable, and the old list stays.
//!
//! Proven against a real Seata server 2.0.0 as a Raft group of one; the event stream against a double.

mod naming;
mod node;
mod raft;
mod session;
mod watching;

pub(crate) use naming::NamingServer;
pub(crate) use raft::Raft;
