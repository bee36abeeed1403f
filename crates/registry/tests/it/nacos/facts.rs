//! What was measured on a real Nacos 3.1, and what production taught, one test each, on the strict fake.

use super::*;

/// Spec: one publish record per connection and service. A second registration must not push the first one out.
#[test]
fn several_instances_of_one_service_from_one_process_go_as_a_batch() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        let one = register(&registry, "orders", instance("10.0.0.1:80")).await;
        let two = register(&registry, "orders", instance("10.0.0.2:80")).await;
        let three = register(&registry, "orders", instance("10.0.0.3:80")).await;
        assert_eq!(server.has("orders"), ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
        assert_eq!(server.connections(), 1, "over one connection");
        // A deregistration takes the whole record, whatever it names: the rest is sent as a batch instead.
        two.deregister().await;
        assert_eq!(server.has("orders"), ["10.0.0.1:80", "10.0.0.3:80"]);
        three.deregister().await;
        assert_eq!(server.has("orders"), ["10.0.0.1:80"]);
        let deregistrations =
            |kind: &str| server.asked(kind).iter().filter(|r| r["type"] == "deregisterInstance").count();
        assert_eq!(deregistrations("InstanceRequest"), 0);
        one.deregister().await;
        assert!(server.has("orders").is_empty());
        assert_eq!(deregistrations("InstanceRequest"), 1);
        end([registry]).await;
    });
}

/// Fact: 1 + 1023 characters pass, 1 + 1024 are refused; characters, not bytes.
#[test]
fn the_metadata_limit_is_1024_characters_and_checked_before_the_wire() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        let at = |value: String| instance("10.0.0.1:80").with_meta("k", value);
        let wide = register(&registry, "limit", at("東".repeat(1023))).await;
        assert_eq!(server.has("limit"), ["10.0.0.1:80"]);
        wide.deregister().await;
        let asked = server.asked("InstanceRequest").len();
        let error = registry.register("limit", at("v".repeat(1024))).expect_err("over the limit");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), "metadata keys and values have 1025 characters, at most 1024 are accepted");
        // What we add counts too, and is found before the wire as well.
        let mut named = registry.register("limit", at("v".repeat(1023)).with_id("other")).expect("the limits allow it");
        let error = tokio::time::timeout(SOON, named.registered()).await.expect("in time").expect_err("no room");
        assert!(error.to_string().contains("1041 characters with what we add"), "{error}");
        assert_eq!(server.asked("InstanceRequest").len(), asked, "nothing was sent");
        end([registry]).await;
    });
}

/// Fact: a server property raises the limit; and one that has a lower one answers 400.
#[test]
fn another_metadata_limit_of_the_server_is_a_parameter_and_a_refusal_is_final() {
    let server = Fake::start(Manners { metadata_limit: 2000, ..Manners::default() });
    block_on(async {
        let registry = connect(&server.url("?metadata-limit=2000"));
        let mut over = register(&registry, "limit", instance("10.0.0.1:80").with_meta("k", "v".repeat(1999))).await;
        registered(&mut over).await;
        server.manners().metadata_limit = 100;
        let mut refused = registry
            .register("other", instance("10.0.0.2:80").with_meta("k", "v".repeat(200)))
            .expect("our limit allows it");
        let error = tokio::time::timeout(SOON, refused.registered()).await.expect("in time").expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("400: Param check invalid:Param 'Metadata' is illegal"), "{error}");
        // What was taken under the higher limit could not even be taken away; that is tried until the end.
        server.manners().metadata_limit = 2000;
        end([registry]).await;
    });
}

/// A bad instance must not take the good ones of its batch with it.
#[test]
fn one_refused_instance_does_not_harm_the_others_of_its_service() {
    let server = Fake::start(Manners { metadata_limit: 100, ..Manners::default() });
    block_on(async {
        let registry = connect(&server.url(""));
        let _first = register(&registry, "batch", instance("10.0.0.1:80")).await;
        let mut bad =
            registry.register("batch", instance("10.0.0.2:80").with_meta("k", "v".repeat(200))).expect("valid here");
        let mut good = registry.register("batch", instance("10.0.0.3:80")).expect("valid");
        registered(&mut good).await;
        tokio::time::timeout(SOON, bad.registered()).await.expect("in time").expect_err("refused");
        assert!(matches!(bad.state(), RegistrationState::Refused(_)));
        assert_eq!(server.has("batch"), ["10.0.0.1:80", "10.0.0.3:80"]);
        end([registry]).await;
    });
}

/// Fact: weight 0 is registered and returned; only the reference client leaves it out. 20000 is accepted over gRPC.
#[test]
fn weights_are_carried_exactly() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        for weight in [0.0, 0.5, 10_000.0, 20_000.0, 4_294_967_295.0] {
            let kept = register(&registry, "weights", instance("10.0.0.1:80").with_weight(weight)).await;
            see_that(&registry, "weights", &weight.to_string(), |view| {
                view.snapshot.as_ref().is_some_and(|s| s.instances.len() == 1 && s.instances[0].weight == weight)
            })
            .await;
            let native = server.instances("DEFAULT_GROUP", "weights")[0]["weight"].as_f64();
            assert_eq!(native, Some(weight.min(10_000.0)), "every interface accepts what is sent");
            kept.deregister().await;
            see(&registry, "weights", &[]).await;
        }
        end([registry]).await;
    });
}

/// Spec: what operators set lies over what was registered; it is read, and never "repaired".
#[test]
fn what_operators_set_is_read_and_left_alone() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        let _kept =
            register(&registry, "overlaid", instance("10.0.0.1:80").with_weight(20_000.0).with_meta("a", "1")).await;
        server.overlay("overlaid", "10.0.0.1", 80, json!({"weight": 0.0, "metadata": {"b": "2"}}));
        let view = see_that(&registry, "overlaid", "the operator's weight", |view| {
            view.snapshot.as_ref().is_some_and(|s| s.instances.first().is_some_and(|i| i.weight == 0.0))
        })
        .await;
        let seen = &view.snapshot.expect("a list").instances[0];
        assert_eq!(seen.metadata.get("a").map(|v| v.to_text()), Some("1".into()));
        assert_eq!(seen.metadata.get("b").map(|v| v.to_text()), Some("2".into()));
        server.overlay("overlaid", "10.0.0.1", 80, json!({"enabled": false}));
        see_that(&registry, "overlaid", "switched off", |view| {
            view.snapshot.as_ref().is_some_and(|s| s.instances.first().is_some_and(|i| !i.enabled))
        })
        .await;
        assert_eq!(server.asked("InstanceRequest").len(), 1, "nothing was repaired");
        end([registry]).await;
    });
}

/// Fact: a client killed or gone takes its instances along at once; ours come back by themselves.
#[test]
fn a_broken_connection_is_dropped_whole_and_everything_is_redone_over_one_new_one() {
    let server = Fake::start(Manners::default());
    let proxy = Proxy::start(server.grpc());
    block_on(async {
        let url = server.url(&format!("?grpc-port={}", proxy.address().port()));
        let (registry, other) = (connect(&url), connect(&server.url("")));
        let _one = register(&registry, "redo-a", instance("10.0.0.1:80")).await;
        let _two = register(&registry, "redo-a", instance("10.0.0.2:80")).await;
        let _three = register(&registry, "redo-b", instance("10.0.0.3:80")).await;
        see(&registry, "redo-a", &["10.0.0.1:80", "10.0.0.2:80"]).await;
        see(&other, "redo-b", &["10.0.0.3:80"]).await;
        let before = server.connections();
        proxy.cut();
        see(&other, "redo-b", &[]).await;
        proxy.heal();
        see(&other, "redo-a", &["10.0.0.1:80", "10.0.0.2:80"]).await;
        see(&other, "redo-b", &["10.0.0.3:80"]).await;
        see(&registry, "redo-a", &["10.0.0.1:80", "10.0.0.2:80"]).await;
        assert_eq!(server.connections(), before + 1, "one new connection for all of it");
        end([registry, other]).await;
    });
}

/// Spec: error 301 says that the server takes the connection for a stranger's; calls over it would go on failing.
#[test]
fn a_connection_that_the_server_forgot_is_left() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        let _one = register(&registry, "forgotten", instance("10.0.0.1:80")).await;
        see(&registry, "forgotten", &["10.0.0.1:80"]).await;
        server.forget_connections();
        // Nothing of ours is sent meanwhile: the health check finds it.
        until("registered again", || server.has("forgotten") == ["10.0.0.1:80"]).await;
        assert_eq!(server.connections(), 2);
        end([registry]).await;
    });
}

/// Spec: the order of pushes is the server's clock; the reference client logs older ones and stores them all the same.
#[test]
fn an_older_push_is_dropped() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        let _one = register(&registry, "order", instance("10.0.0.1:80")).await;
        let mut seen = registry.subscribe("order");
        let mut shown = async |host: &str| {
            let wanted = [format!("{host}:80")];
            let found = seen.wait_for(|view| {
                assert_ne!(addresses(view), ["10.9.9.2:80"], "the older one was shown");
                addresses(view) == wanted
            });
            tokio::time::timeout(SOON, found).await.expect("in time").expect("open");
        };
        let push = |host: &str, made: i64| {
            let hosts = json!([{"ip": host, "port": 80, "metadata": {}}]);
            server.push("order", json!({"name": "order", "hosts": hosts, "lastRefTime": made}));
        };
        shown("10.0.0.1").await;
        // Later than any clock.
        push("10.9.9.1", 4_000_000_000_000);
        shown("10.9.9.1").await;
        push("10.9.9.2", 3_999_999_999_999);
        push("10.9.9.3", 4_000_000_000_001);
        shown("10.9.9.3").await;
        // A look is an answer to a question: newer than any push, whatever the clock says.
        let looked = registry.instances("order").await.expect("it answers").expect("known").0;
        assert_eq!(looked.instances[0].address.to_string(), "10.0.0.1:80", "a clock that was set back heals");
        end([registry]).await;
    });
}

/// Fact: under the threshold all instances are returned as healthy, with a flag; with the default of 0, when none is.
#[test]
fn under_the_protection_threshold_health_is_not_believed_unless_asked_for() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let (registry, trusting) = (connect(&server.url("")), connect(&server.url("?protected=healthy")));
        let _one = register(&registry, "protected", instance("10.0.0.1:80")).await;
        let _two = register(&registry, "protected", instance("10.0.0.2:80")).await;
        let all = |healthy: bool| {
            move |view: &View| {
                view.snapshot
                    .as_ref()
                    .is_some_and(|s| s.instances.len() == 2 && s.instances.iter().all(|i| i.healthy == healthy))
            }
        };
        let view = see_that(&registry, "protected", "two healthy", all(true)).await;
        assert!(view.snapshot.expect("a list").notes.is_empty());
        server.protect("protected", 1.0);
        let view = see_that(&registry, "protected", "not verified", all(false)).await;
        let notes = view.snapshot.expect("a list").notes.clone();
        assert_eq!(notes.iter().map(|note| note.code).collect::<Vec<_>>(), ["protection_threshold"]);
        let view = see_that(&trusting, "protected", "believed", all(true)).await;
        assert_eq!(view.snapshot.expect("a list").notes[0].code, "protection_threshold", "and said so");
        server.protect("protected", 0.0);
        see_that(&registry, "protected", "healthy again", all(true)).await;
        end([registry, trusting]).await;
    });
}

/// Fact: a space, a leading `@` and `@@` are refused by servers with 400.
#[test]
fn names_that_servers_refuse_are_refused_before_the_wire() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        for name in ["a b", "@a", "a@@b", "订单"] {
            let mut refused = registry.register(name, instance("10.0.0.1:80")).expect("found out later");
            let error = tokio::time::timeout(SOON, refused.registered()).await.expect("in time").expect_err(name);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{name}");
            assert_eq!(registry.instances(name).await.expect_err(name).kind(), ErrorKind::Invalid);
        }
        let _slash = register(&registry, "/a", instance("10.0.0.1:80")).await;
        let mut cluster = registry.register("c", instance("10.0.0.1:80").with_cluster("a.b")).expect("found out later");
        tokio::time::timeout(SOON, cluster.registered()).await.expect("in time").expect_err("a dot in a cluster");
        assert_eq!(server.asked("InstanceRequest").len(), 1);
        for url in
            ["nacos://h?group=a/b", "nacos://h?cluster=a.b", "nacos://h/a%2Fb", "nacos://h?gruop=a", "nacos://u@h"]
        {
            let url: RegistryUrl = url.parse().expect("a URL");
            Registry::connect(&url).expect_err(&url.to_string());
        }
        end([registry]).await;
    });
}

/// Fact: a service is ephemeral or persistent; mixing is refused with 400.
#[test]
fn persistent_instances_stay_and_do_not_mix_with_ephemeral_ones() {
    let mut server = Fake::start(Manners::default());
    block_on(async {
        let (lasting, fleeting) = (connect(&server.url("?ephemeral=false")), connect(&server.url("")));
        assert!(!lasting.capabilities().liveness && fleeting.capabilities().liveness);
        lasting.put("lasting", &instance("10.0.0.1:80").with_meta("k", "v")).await.expect("it is put");
        lasting.put("lasting", &instance("10.0.0.2:80").with_weight(3.0)).await.expect("several stand by themselves");
        see(&fleeting, "lasting", &["10.0.0.1:80", "10.0.0.2:80"]).await;
        let mut refused = fleeting.register("lasting", instance("10.0.0.3:80")).expect("valid");
        let error = tokio::time::timeout(SOON, refused.registered()).await.expect("in time").expect_err("mixed");
        assert!(error.to_string().contains("is persistent service, can't register ephemeral instance"), "{error}");
        let _kept = register(&fleeting, "fleeting", instance("10.0.0.4:80")).await;
        let error = lasting.put("fleeting", &instance("10.0.0.5:80")).await.expect_err("mixed");
        assert!(error.to_string().contains("is ephemeral service, can't register persistent instance"), "{error}");
        end([lasting, fleeting]).await;
    });
    server.start_again();
    block_on(async {
        let other = connect(&server.url("?ephemeral=false"));
        see(&other, "lasting", &["10.0.0.1:80", "10.0.0.2:80"]).await;
        other.remove("lasting", &InstanceId::new("10.0.0.1:80")).await.expect("anybody may take it away");
        other.remove("lasting", &InstanceId::new("10.0.0.1:80")).await.expect("twice as well");
        see(&other, "lasting", &["10.0.0.2:80"]).await;
        end([other]).await;
    });
}

/// Spec: persistent over gRPC needs the server's ability, else it goes over HTTP.
#[test]
fn a_server_without_the_ability_gets_persistent_instances_over_http() {
    for manners in [
        Manners { persistent: false, ..Manners::default() },
        Manners { negotiates: false, http: (true, false), ..Manners::default() },
    ] {
        let server = Fake::start(manners);
        block_on(async {
            let registry = connect(&server.url("?ephemeral=false"));
            registry.put("lasting", &instance("10.0.0.1:80").with_meta("k", "v")).await.expect("it is put");
            see(&registry, "lasting", &["10.0.0.1:80"]).await;
            assert!(server.asked("PersistentInstanceRequest").is_empty() && server.asked("InstanceRequest").is_empty());
            assert_eq!(server.instances("DEFAULT_GROUP", "lasting")[0]["ephemeral"], false);
            registry.remove("lasting", &InstanceId::new("10.0.0.1:80")).await.expect("it is taken away");
            see(&registry, "lasting", &[]).await;
            end([registry]).await;
        });
    }
}

/// What somebody else registered is changed as operators do it; its liveness stays its owner's.
#[test]
fn an_instance_of_another_process_is_changed_in_place() {
    for http in [(true, false), (false, true)] {
        let server = Fake::start(Manners { http, ..Manners::default() });
        block_on(async {
            let (owner, other) = (connect(&server.url("")), connect(&server.url("")));
            let _kept = register(&owner, "amended", instance("10.0.0.1:80").with_weight(2.0).with_meta("a", "1")).await;
            let view = see(&other, "amended", &["10.0.0.1:80"]).await;
            let seen = view.snapshot.expect("a list").instances[0].clone();
            let changed = seen.with_weight(0.0).with_meta("b", "2");
            other.amend("amended", &changed).await.expect("it is changed");
            let view = see_that(&owner, "amended", "the change", |view| {
                view.snapshot.as_ref().is_some_and(|s| s.instances.first().is_some_and(|i| i.weight == 0.0))
            })
            .await;
            assert_eq!(view.snapshot.expect("a list").instances[0].metadata.len(), 2);
            let error = other.amend("amended", &instance("10.0.0.9:80")).await.expect_err("it is not there");
            assert!(error.to_string().contains("resource not found"), "{error}");
            end([owner]).await;
            see(&other, "amended", &[]).await;
            end([other]).await;
        });
    }
}

/// What others registered ends with them; saying that it was taken away would be a lie.
#[test]
fn an_ephemeral_instance_of_somebody_else_cannot_be_taken_away() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let (owner, other) = (connect(&server.url("")), connect(&server.url("")));
        let _kept = register(&owner, "owned", instance("10.0.0.1:80")).await;
        let error = other.remove("owned", &InstanceId::new("10.0.0.1:80")).await.expect_err("not ours");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        other.remove("owned", &InstanceId::new("10.0.0.9:80")).await.expect("what is not there is gone");
        end([owner, other]).await;
    });
}

/// Spec: code 300, and the reset that a starting server sends, are "not yet", never "nothing there".
#[test]
fn a_starting_or_full_server_is_unreachable_and_then_used() {
    let server = Fake::start(Manners { started: false, ..Manners::default() });
    block_on(async {
        let registry = connect(&server.url(""));
        let registration = registry.register("warm", instance("10.0.0.1:80")).expect("valid");
        let view = see_that(&registry, "warm", "starting", |view| view.state == State::Unreachable).await;
        let error = view.error.expect("a reason").to_string();
        assert!(error.contains("300 (it is starting)"), "{error}");
        assert!(view.snapshot.is_none());
        *server.manners() = Manners { full: true, ..Manners::default() };
        see_that(&registry, "warm", "turned away", |view| {
            view.error.as_ref().is_some_and(|error| error.to_string().contains("turns clients away"))
        })
        .await;
        *server.manners() = Manners::default();
        see(&registry, "warm", &["10.0.0.1:80"]).await;
        registration.deregister().await;
        end([registry]).await;
    });
}

/// Spec: the server probes a silent client and disconnects it when it does not answer; every push wants an answer.
#[test]
fn what_the_server_asks_is_answered() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        let _kept = register(&registry, "asked", instance("10.0.0.1:80")).await;
        see(&registry, "asked", &["10.0.0.1:80"]).await;
        until("the acknowledgement is answered", || server.answers("SetupAckResponse") == 1).await;
        server.tell("ClientDetectionRequest", json!({"requestId": "7", "module": "internal"}));
        until("the probe is answered", || server.answers("ClientDetectionResponse") == 1).await;
        server.push("asked", json!({"name": "asked", "hosts": [], "lastRefTime": 4_000_000_000_000_i64}));
        until("the push is answered", || server.answers("NotifySubscriberResponse") >= 1).await;
        server.tell("SomethingNewRequest", json!({"requestId": "8"}));
        server.tell("ClientDetectionRequest", json!({"requestId": "9"}));
        until("what we do not know does no harm", || server.answers("ClientDetectionResponse") == 2).await;
        end([registry]).await;
    });
}

/// Spec: a reset is a wish to go elsewhere. The new connection has everything before the old one ends, so nobody sees a gap.
#[test]
fn a_reset_moves_to_another_server_without_a_gap() {
    let (first, second) = (Fake::start(Manners::default()), Fake::start(Manners::default()));
    block_on(async {
        let url = format!("nacos://{},{}", first.http(), second.http());
        let registry = connect(&url);
        let _one = register(&registry, "moved", instance("10.0.0.1:80")).await;
        let (from, to) = if first.clients() == 1 { (&first, &second) } else { (&second, &first) };
        let mut seen = registry.subscribe("moved");
        let fresh = seen.wait_for(|view| view.state == State::Fresh && addresses(view).len() == 1);
        tokio::time::timeout(SOON, fresh).await.expect("in time").expect("open");
        let to_http = to.http();
        from.tell(
            "ConnectResetRequest",
            json!({"requestId": "1", "serverIp": to_http.ip().to_string(), "serverPort": to_http.port().to_string()}),
        );
        until("it is there", || to.has("moved") == ["10.0.0.1:80"]).await;
        until("and no longer here", || from.clients() == 0).await;
        let _two = register(&registry, "moved", instance("10.0.0.2:80")).await;
        let followed = seen.wait_for(|view| {
            assert_eq!(view.state, State::Fresh, "{view:?}");
            addresses(view).len() == 2
        });
        tokio::time::timeout(SOON, followed).await.expect("in time").expect("open");
        // A server that we were not told of is no place to go.
        to.tell("ConnectResetRequest", json!({"requestId": "2", "serverIp": "192.0.2.9", "serverPort": "8848"}));
        until("the next one of ours", || from.has("moved").len() == 2).await;
        end([registry]).await;
    });
}

#[test]
fn a_dead_server_is_passed_over() {
    let (mut first, second) = (Fake::start(Manners::default()), Fake::start(Manners::default()));
    first.stop();
    block_on(async {
        let registry = connect(&format!("nacos://{},{}", first.http(), second.http()));
        let _kept = register(&registry, "over", instance("10.0.0.1:80")).await;
        assert_eq!(second.has("over"), ["10.0.0.1:80"]);
        end([registry]).await;
    });
}

/// Seata #7986: pushes that leave out the clusters must match all the same; which clusters are wanted is decided here.
#[test]
fn clusters_restrict_what_is_seen_even_when_pushes_lose_them() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let (writer, blue, both) = (
            connect(&server.url("")),
            connect(&server.url("?cluster=blue")),
            connect(&server.url("?cluster=blue,green")),
        );
        let _b = register(&writer, "coloured", instance("10.0.0.1:80").with_cluster("blue")).await;
        let _g = register(&writer, "coloured", instance("10.0.0.2:80").with_cluster("green")).await;
        let _d = register(&writer, "coloured", instance("10.0.0.3:80")).await;
        // Followed all the while: who asks anew gets an answer instead of the push.
        let _followed = blue.subscribe("coloured");
        see(&blue, "coloured", &["10.0.0.1:80"]).await;
        see(&both, "coloured", &["10.0.0.1:80", "10.0.0.2:80"]).await;
        let hosts = json!([
            {"ip": "10.0.0.8", "port": 80, "clusterName": "blue"}, {"ip": "10.0.0.9", "port": 80, "clusterName": "green"}
        ]);
        server.push(
            "coloured",
            json!({"name": "DEFAULT_GROUP@@coloured", "hosts": hosts, "lastRefTime": 4_000_000_000_000_i64}),
        );
        see(&blue, "coloured", &["10.0.0.8:80"]).await;
        // An instance without a cluster registers in the first one of the address.
        let _own = register(&blue, "home", instance("10.0.0.4:80")).await;
        assert_eq!(server.instances("DEFAULT_GROUP", "home")[0]["clusterName"], "blue");
        let view = see(&writer, "home", &["10.0.0.4:80"]).await;
        assert_eq!(&*view.snapshot.expect("a list").instances[0].cluster, "blue");
        end([writer, blue, both]).await;
    });
}

/// Seata #7986 again: pushes can be lost for good. Every followed service is asked for again every half minute.
#[test]
fn a_lost_push_is_made_up_for() {
    let server = Fake::start(Manners { pushes: false, ..Manners::default() });
    block_on(async {
        let (reader, writer) = (connect(&server.url("")), connect(&server.url("")));
        let _one = register(&writer, "lost", instance("10.0.0.1:80")).await;
        // Followed all the while: who asks anew gets an answer instead of the push.
        let mut seen = reader.subscribe("lost");
        see(&reader, "lost", &["10.0.0.1:80"]).await;
        let _two = register(&writer, "lost", instance("10.0.0.2:80")).await;
        let found = seen.wait_for(|view| addresses(view).len() == 2);
        tokio::time::timeout(Duration::from_secs(90), found).await.expect("in time").expect("open");
        end([reader, writer]).await;
    });
}

/// Empty pushes are passed on; whether they are believed is the guard's to decide.
#[test]
fn an_empty_push_is_passed_on_as_empty_and_not_as_unknown() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        let view = see_that(&registry, "never", "unknown", |view| view.state == State::UnknownService).await;
        assert!(view.snapshot.is_none());
        let kept = register(&registry, "emptied", instance("10.0.0.1:80")).await;
        see(&registry, "emptied", &["10.0.0.1:80"]).await;
        kept.deregister().await;
        let view = see(&registry, "emptied", &[]).await;
        assert_eq!(view.state, State::Fresh, "it is empty, not unknown: {view:?}");
        assert_eq!(registry.instances("emptied").await.expect("it answers").expect("known").0.instances, []);
        end([registry]).await;
    });
}

/// One bad entry is left out and counted; it never empties the list.
#[test]
fn bad_entries_of_a_push_are_counted() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        let _kept = register(&registry, "mixed", instance("10.0.0.1:80")).await;
        let _followed = registry.subscribe("mixed");
        see(&registry, "mixed", &["10.0.0.1:80"]).await;
        let hosts = json!([
            {"ip": "10.0.0.1", "port": 80, "metadata": null}, {"ip": "", "port": 80}, {"ip": "10.0.0.2"}, 7,
            {"ip": "10.0.0.3", "port": 80, "weight": -1}, {"ip": "10.0.0.4", "port": 80, "weight": "2.5", "unknown": {}},
        ]);
        server.push("mixed", json!({"name": "mixed", "hosts": hosts, "lastRefTime": 4_000_000_000_000_i64}));
        let view = see(&registry, "mixed", &["10.0.0.1:80", "10.0.0.4:80"]).await;
        let snapshot = view.snapshot.expect("a list");
        assert_eq!((snapshot.rejected, snapshot.notes.len()), (4, 4), "{:?}", snapshot.notes);
        assert_eq!(snapshot.instances[1].weight, 2.5);
        end([registry]).await;
    });
}

/// Spec: the token goes into the headers of the envelope; a refused one is replaced once.
#[test]
fn a_login_is_renewed_once_when_it_is_refused() {
    for login_paths in [(true, true), (false, true)] {
        let login = Some(("nacos", "s3cret:&=%"));
        let server = Fake::start(Manners { login, login_paths, ..Manners::default() });
        block_on(async {
            let registry = connect(&format!("nacos://nacos:s3cret%3A%26%3D%25@{}", server.http()));
            let _one = register(&registry, "guarded", instance("10.0.0.1:80")).await;
            see(&registry, "guarded", &["10.0.0.1:80"]).await;
            assert_eq!(server.logins(), 1, "one token for everything");
            server.forget_tokens();
            let _two = register(&registry, "guarded", instance("10.0.0.2:80")).await;
            assert_eq!(server.logins(), 2);
            assert_eq!(server.connections(), 1, "the connection stays");
            assert_eq!(server.has("guarded"), ["10.0.0.1:80", "10.0.0.2:80"]);
            end([registry]).await;

            let wrong = connect(&format!("nacos://nacos:wrong@{}", server.http()));
            let error = wrong.services().await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Denied);
            assert!(!format!("{error} {error:?}").contains("wrong"), "{error}");
            let anonymous = connect(&server.url(""));
            assert_eq!(anonymous.services().await.expect_err("refused").kind(), ErrorKind::Denied);
            end([wrong, anonymous]).await;
        });
    }
}

/// Tokens are renewed before they end.
#[test]
fn a_token_is_renewed_before_its_end() {
    let server = Fake::start(Manners {
        login: Some(("nacos", "nacos")),
        token_ttl: Duration::from_secs(2),
        ..Manners::default()
    });
    block_on(async {
        let registry = connect(&format!("nacos://nacos:nacos@{}", server.http()));
        registry.services().await.expect("it lists");
        tokio::time::sleep(Duration::from_millis(1850)).await;
        registry.services().await.expect("it lists");
        assert_eq!(server.logins(), 2, "the second call found the token too old");
        end([registry]).await;
    });
}

/// A server that hangs answers nobody: calls fail in time, and the connection is given up after the probes.
#[test]
fn a_hanging_server_is_given_up() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url(""));
        let _kept = register(&registry, "hang", instance("10.0.0.1:80")).await;
        see(&registry, "hang", &["10.0.0.1:80"]).await;
        server.manners().silent = true;
        let started = Instant::now();
        see_that(&registry, "hang", "given up", |view| view.state == State::Unreachable).await;
        assert!(started.elapsed() < Duration::from_secs(30), "after {:?}", started.elapsed());
        server.manners().silent = false;
        see(&registry, "hang", &["10.0.0.1:80"]).await;
        end([registry]).await;
    });
}

/// The greeting, word for word where servers look.
#[test]
fn the_greeting_is_what_servers_expect() {
    let server = Fake::start(Manners::default());
    block_on(async {
        let registry = connect(&server.url("/team-a?group=SEATA_GROUP"));
        let _kept = register(&registry, "greeted", instance("10.0.0.1:80")).await;
        let setup = &server.asked("ConnectionSetupRequest")[0];
        assert_eq!(setup["tenant"], "team-a");
        assert_eq!(setup["labels"], json!({"source": "sdk", "module": "naming"}));
        assert!(setup["abilityTable"].is_object(), "or the server does not acknowledge");
        assert!(setup["clientVersion"].as_str().is_some_and(|version| version.contains(":v")), "{setup}");
        let request = &server.asked("InstanceRequest")[0];
        for (key, value) in [
            ("namespace", "team-a"),
            ("groupName", "SEATA_GROUP"),
            ("serviceName", "greeted"),
            ("type", "registerInstance"),
        ] {
            assert_eq!(request[key], value, "{request}");
        }
        let wanted = json!({"ip": "10.0.0.1", "port": 80, "weight": 1.0, "healthy": true, "enabled": true, "ephemeral": true, "clusterName": "DEFAULT"});
        for (key, value) in wanted.as_object().expect("an object") {
            assert_eq!(request["instance"][key], *value, "{request}");
        }
        end([registry]).await;
    });
}

/// Servers before 2.3 neither negotiate nor acknowledge; some of them hold every instance apart.
#[test]
fn a_server_without_negotiation_is_served_too() {
    let server = Fake::start(Manners { negotiates: false, ..Manners::default() });
    block_on(async {
        let registry = connect(&server.url(""));
        let one = register(&registry, "old", instance("10.0.0.1:80")).await;
        let two = register(&registry, "old", instance("10.0.0.2:80")).await;
        assert_eq!(server.has("old"), ["10.0.0.1:80", "10.0.0.2:80"]);
        two.deregister().await;
        assert_eq!(server.has("old"), ["10.0.0.1:80"], "the rest was registered again at once");
        one.deregister().await;
        assert!(server.has("old").is_empty());
        end([registry]).await;
    });
}

/// A deregistration while an attempt to register is under way ends deregistered, over any connection.
#[test]
fn nothing_comes_back_after_it_was_deregistered() {
    let server = Fake::start(Manners::default());
    let proxy = Proxy::start(server.grpc());
    block_on(async {
        let registry = connect(&server.url(&format!("?grpc-port={}", proxy.address().port())));
        let gone = register(&registry, "back", instance("10.0.0.1:80")).await;
        let _stays = register(&registry, "back", instance("10.0.0.2:80")).await;
        proxy.cut();
        tokio::time::timeout(SOON, gone.deregister())
            .await
            .expect("without a connection there is nothing to take away");
        proxy.heal();
        until("the other one is there", || server.has("back") == ["10.0.0.2:80"]).await;
        end([registry]).await;
    });
    assert!(wait_until(SOON, || server.clients() == 0), "the connection is closed at the end");
}

/// A dead registry is not hammered, however many wait for it.
#[test]
fn a_dead_server_sees_few_attempts_of_many_waiters() {
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], 9)));
    proxy.cut();
    block_on(async {
        let registry = connect(&format!("nacos://127.0.0.1:1?grpc-port={}", proxy.address().port()));
        let started = Instant::now();
        let mut subscriptions: Vec<_> = (0..50).map(|n| registry.subscribe(&format!("s{n}"))).collect();
        tokio::time::sleep(Duration::from_secs(5)).await;
        // One a second, however long that was.
        let (attempts, time) = (proxy.accepted(), started.elapsed());
        assert!(attempts <= time.as_secs() + 1, "{attempts} attempts in {time:?}");
        for seen in &mut subscriptions {
            let told = seen.wait_for(|view| view.state == State::Unreachable);
            tokio::time::timeout(SOON, told).await.expect("in time").expect("open");
        }
        end([registry]).await;
    });
}

/// The HTTP side of the real server, fact by fact, for both client interfaces.
mod over_http {
    use super::*;

    const V1: (bool, bool) = (true, false);
    const V3: (bool, bool) = (false, true);

    fn fake(http: (bool, bool)) -> Fake {
        Fake::start(Manners { http, ..Manners::default() })
    }

    fn at(server: &Fake) -> Registry {
        connect(&server.url("?api=http&ttl=900ms&poll=100ms"))
    }

    /// Fact: without heartbeats an instance is unhealthy after one time and gone after two; with them it stays.
    #[test]
    fn an_instance_lives_by_heartbeats_and_its_changes_are_seen() {
        for http in [V1, V3] {
            let server = fake(http);
            block_on(async {
                // A life that a heartbeat which is late on a busy machine does not end.
                let slow = |server: &Fake| connect(&server.url("?api=http&ttl=2s&poll=100ms"));
                let (writer, reader) = (slow(&server), slow(&server));
                let one = instance("10.0.0.1:80").with_weight(2.5).with_cluster("blue").with_meta("k", "a=1,b=ü東");
                let kept = register(&writer, "beats", one.clone()).await;
                tokio::time::sleep(Duration::from_secs(5)).await;
                let healthy = |view: &View| only(view).is_some_and(|one| one.healthy);
                let view = see_that(&reader, "beats", "one that lives", healthy).await;
                let seen = view.snapshot.expect("a list").instances[0].clone();
                assert_eq!((seen.weight, &*seen.cluster), (2.5, "blue"));
                assert_eq!(seen.metadata.get("k").map(|v| v.to_text()), Some("a=1,b=ü東".into()));
                kept.update(one.with_meta("k", "2")).expect("valid");
                see_that(&reader, "beats", "the change", |view| {
                    view.snapshot
                        .as_ref()
                        .is_some_and(|s| s.instances.first().is_some_and(|i| &*i.metadata["k"].to_text() == "2"))
                })
                .await;
                kept.deregister().await;
                see(&reader, "beats", &[]).await;
                assert_eq!(server.clients(), 0, "no gRPC");
                end([writer, reader]).await;
            });
        }
    }

    /// Fact: a heartbeat of an unknown instance answers 20404 (version 1) or 21003 (version 3): register again.
    #[test]
    fn an_instance_that_the_server_lost_is_registered_again() {
        for http in [V1, V3] {
            let mut server = fake(http);
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            let writer = runtime.block_on(async {
                let writer = at(&server);
                std::mem::forget(register(&writer, "lost", instance("10.0.0.1:80").with_meta("k", "v")).await);
                writer
            });
            server.start_again();
            assert!(wait_until(SOON, || server.has("lost") == ["10.0.0.1:80"]), "{http:?}");
            assert_eq!(server.instances("DEFAULT_GROUP", "lost")[0]["metadata"]["k"], "v");
            runtime.block_on(end([writer]));
        }
    }

    /// Fact: parameter errors are HTTP 400 with plain text.
    #[test]
    fn a_refusal_in_plain_text_is_passed_on() {
        for http in [V1, V3] {
            let server = Fake::start(Manners { http, metadata_limit: 50, ..Manners::default() });
            block_on(async {
                let registry = connect(&server.url("?api=http"));
                let mut refused = registry
                    .register("text", instance("10.0.0.1:80").with_meta("k", "v".repeat(200)))
                    .expect("our limit");
                let error =
                    tokio::time::timeout(SOON, refused.registered()).await.expect("in time").expect_err("refused");
                assert_eq!(error.kind(), ErrorKind::Invalid);
                assert!(
                    error.to_string().ends_with(
                        "400 Bad Request: Param 'Metadata' is illegal, the param length should not exceed 50."
                    ),
                    "{error}"
                );
                end([registry]).await;
            });
        }
    }

    /// Fact: version 2 answers 410 Gone by default in 3.1. Where nothing else is there, that is said.
    #[test]
    fn a_server_without_client_interface_is_named_as_such() {
        let server = fake((false, false));
        block_on(async {
            let registry = connect(&server.url("?api=http"));
            let error = registry.instances("none").await.expect_err("there is none");
            assert!(error.to_string().contains("404"), "{error}");
            let elsewhere = connect(&server.url("?api=http&context=/nacos/v2"));
            let error = elsewhere.instances("none").await.expect_err("it is gone");
            assert!(error.to_string().contains("410 Gone (code 40000)"), "{error}");
            end([registry, elsewhere]).await;
        });
    }

    /// Fact: version 3 lists no services to clients, and gives the hosts without a flag of the threshold; version 1 does.
    #[test]
    fn what_an_interface_does_not_say_is_not_made_up() {
        let (old, new) = (fake(V1), fake(V3));
        block_on(async {
            let (one, three) = (at(&old), at(&new));
            let _one = register(&one, "said", instance("10.0.0.1:80")).await;
            let _three = register(&three, "said", instance("10.0.0.1:80")).await;
            assert_eq!(one.services().await.expect("it lists"), [Box::<str>::from("said")]);
            assert_eq!(three.services().await.expect_err("it does not").kind(), ErrorKind::Unsupported);
            old.protect("said", 1.0);
            see_that(&one, "said", "the threshold", |view| {
                view.snapshot
                    .as_ref()
                    .is_some_and(|s| s.notes.first().is_some_and(|note| note.code == "protection_threshold"))
            })
            .await;
            end([one, three]).await;
        });
    }

    #[test]
    fn a_refused_token_is_replaced_once() {
        for http in [V1, V3] {
            let login = Some(("nacos", "nacos"));
            let server = Fake::start(Manners { login, http, ..Manners::default() });
            block_on(async {
                let registry = connect(&format!("nacos://nacos:nacos@{}?api=http&poll=100ms", server.http()));
                let _one = register(&registry, "guarded", instance("10.0.0.1:80")).await;
                server.forget_tokens();
                let _two = register(&registry, "guarded", instance("10.0.0.2:80")).await;
                see(&registry, "guarded", &["10.0.0.1:80", "10.0.0.2:80"]).await;
                assert_eq!(server.logins(), 2);
                end([registry]).await;
            });
        }
    }

    #[test]
    fn persistent_instances_stay() {
        for http in [V1, V3] {
            let mut server = fake(http);
            block_on(async {
                let registry = connect(&server.url("?api=http&ephemeral=false"));
                registry.put("lasting", &instance("10.0.0.1:80")).await.expect("it is put");
                end([registry]).await;
            });
            server.start_again();
            block_on(async {
                let registry = connect(&server.url("?api=http&ephemeral=false&poll=100ms"));
                see(&registry, "lasting", &["10.0.0.1:80"]).await;
                registry.remove("lasting", &InstanceId::new("10.0.0.1:80")).await.expect("anybody may");
                see(&registry, "lasting", &[]).await;
                end([registry]).await;
            });
        }
    }
}

/// TLS under gRPC and HTTP, with an authority of one's own; without it, nothing is sent.
#[test]
fn tls_is_spoken_and_an_unknown_authority_refused() {
    let scratch = test_support::Scratch::new("nacos-tls");
    let certificate = require!(test_support::certificate::Certificate::issue(scratch.path()));
    let server = Fake::start(Manners { login: Some(("nacos", "nacos")), ..Manners::default() });
    block_on(async {
        let (http, grpc) =
            (tls_before(server.http(), &certificate).await, tls_before(server.grpc(), &certificate).await);
        let url = |rest: &str| format!("nacos://nacos:nacos@127.0.0.1:{}?grpc-port={}{rest}", http.port(), grpc.port());
        let registry = connect(&url(&format!("&tls=true&ca={}", certificate.ca.display())));
        let _kept = register(&registry, "secret", instance("10.0.0.1:80")).await;
        see(&registry, "secret", &["10.0.0.1:80"]).await;
        for rest in ["&tls=true", ""] {
            let refused = connect(&url(rest));
            let error = refused.services().await.expect_err("not trusted, or not understood");
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            end([refused]).await;
        }
        assert_eq!(server.connections(), 1);
        end([registry]).await;
    });
}

/// Ends TLS before a plain server; gives where.
async fn tls_before(server: SocketAddr, certificate: &test_support::certificate::Certificate) -> SocketAddr {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain: Vec<_> = CertificateDer::pem_file_iter(&certificate.cert)
        .and_then(Iterator::collect::<Result<_, _>>)
        .expect("certificates");
    let key = PrivateKeyDer::from_pem_file(&certificate.key).expect("a key");
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let Ok(mut server) = tokio::net::TcpStream::connect(server).await else { return };
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}
