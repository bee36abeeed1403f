//! SOFARegistry's protobuf messages, with the numbers of its own `.proto` files (`registry-common-model` 6.3.0).

use std::collections::HashMap;

use prost::Message;

/// What stands before a message's name in a frame's class.
pub(super) const PACKAGE: &str = "com.alipay.sofa.registry.common.model.client.pb.";

/// Registers.
pub(super) const REGISTER: &str = "REGISTER";
/// Takes back.
pub(super) const UNREGISTER: &str = "UNREGISTER";

#[derive(Clone, PartialEq, Message)]
pub(super) struct BaseRegisterPb {
    #[prost(string, tag = "1")]
    pub(super) instance_id: String,
    #[prost(string, tag = "2")]
    pub(super) zone: String,
    #[prost(string, tag = "3")]
    pub(super) app_name: String,
    #[prost(string, tag = "4")]
    pub(super) data_id: String,
    #[prost(string, tag = "5")]
    pub(super) group: String,
    #[prost(string, tag = "6")]
    pub(super) process_id: String,
    #[prost(string, tag = "7")]
    pub(super) regist_id: String,
    #[prost(string, tag = "8")]
    pub(super) client_id: String,
    #[prost(string, tag = "9")]
    pub(super) data_info_id: String,
    #[prost(string, tag = "10")]
    pub(super) ip: String,
    #[prost(int32, tag = "11")]
    pub(super) port: i32,
    #[prost(string, tag = "12")]
    pub(super) event_type: String,
    #[prost(int64, tag = "13")]
    pub(super) version: i64,
    #[prost(int64, tag = "14")]
    pub(super) timestamp: i64,
    #[prost(map = "string, string", tag = "15")]
    pub(super) attributes: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DataBoxPb {
    #[prost(string, tag = "1")]
    pub(super) data: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PublisherRegisterPb {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_list: Vec<DataBoxPb>,
    #[prost(message, optional, tag = "2")]
    pub(super) base_register: Option<BaseRegisterPb>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SubscriberRegisterPb {
    #[prost(string, tag = "1")]
    pub(super) scope: String,
    #[prost(message, optional, tag = "2")]
    pub(super) base_register: Option<BaseRegisterPb>,
    /// Stays empty: pushes are not compressed then, and other values on one connection block all pushes.
    #[prost(string, tag = "3")]
    pub(super) accept_encoding: String,
    /// Whether pushes may hold several data centres, of all of which a server leaves out zones that it does not know. Only for
    /// the scope `global`; without it a server leaves out all data centres but its own.
    #[prost(bool, tag = "4")]
    pub(super) accept_multi: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegisterResponsePb {
    #[prost(bool, tag = "1")]
    pub(super) success: bool,
    #[prost(string, tag = "2")]
    pub(super) regist_id: String,
    #[prost(int64, tag = "3")]
    pub(super) version: i64,
    #[prost(bool, tag = "4")]
    pub(super) refused: bool,
    #[prost(string, tag = "5")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DataBoxesPb {
    #[prost(message, repeated, tag = "1")]
    pub(super) data: Vec<DataBoxPb>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReceivedDataPb {
    #[prost(string, tag = "1")]
    pub(super) data_id: String,
    #[prost(string, tag = "2")]
    pub(super) group: String,
    #[prost(string, tag = "3")]
    pub(super) instance_id: String,
    /// The data centre; each has versions of its own.
    #[prost(string, tag = "4")]
    pub(super) segment: String,
    #[prost(string, tag = "5")]
    pub(super) scope: String,
    #[prost(string, repeated, tag = "6")]
    pub(super) subscriber_regist_ids: Vec<String>,
    /// By zone of the publisher.
    #[prost(map = "string, message", tag = "7")]
    pub(super) data: HashMap<String, DataBoxesPb>,
    #[prost(int64, tag = "8")]
    pub(super) version: i64,
    #[prost(string, tag = "9")]
    pub(super) local_zone: String,
    #[prost(string, tag = "10")]
    pub(super) encoding: String,
    #[prost(bytes = "vec", tag = "11")]
    pub(super) body: Vec<u8>,
    #[prost(int32, tag = "12")]
    pub(super) origin_body_size: i32,
}

/// A push to a subscriber that takes several data centres.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MultiReceivedDataPb {
    #[prost(string, tag = "1")]
    pub(super) data_id: String,
    #[prost(string, tag = "2")]
    pub(super) group: String,
    #[prost(string, tag = "3")]
    pub(super) instance_id: String,
    #[prost(string, tag = "4")]
    pub(super) scope: String,
    #[prost(string, repeated, tag = "5")]
    pub(super) subscriber_regist_ids: Vec<String>,
    #[prost(string, tag = "6")]
    pub(super) local_segment: String,
    #[prost(string, tag = "7")]
    pub(super) local_zone: String,
    /// By data centre.
    #[prost(map = "string, message", tag = "8")]
    pub(super) multi_data: HashMap<String, MultiSegmentDataPb>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MultiSegmentDataPb {
    #[prost(string, tag = "1")]
    pub(super) segment: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) zip_data: Vec<u8>,
    /// By zone of the publisher.
    #[prost(map = "string, message", tag = "3")]
    pub(super) unzip_data: HashMap<String, DataBoxesPb>,
    #[prost(string, tag = "4")]
    pub(super) encoding: String,
    #[prost(int64, tag = "5")]
    pub(super) version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResultPb {
    #[prost(bool, tag = "1")]
    pub(super) success: bool,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}
