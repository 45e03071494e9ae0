@0x806fba4cc4e76d36;
# tenantq over Cap'n Proto: the same operations, rules and errors as over HTTP.
#
# Times are in milliseconds: names end in Ms (durations) or in At and Until (wall clock, since 1970). Bodies and values are raw bytes.
# A number with the default -1 is optional; -1 means the queue's setting, no limit, or unknown. An empty Text is a missing one.
#
# Every reply is a union of the result and an Error. Check which one it is before reading it. Besides the union, every
# reply has the server's durability. Fields are only added, never changed; older servers send their defaults.

const schemaVersion :UInt16 = 2;
# Version 1 is Queueber's schema, queueber.capnp. It knows no tenants.

struct QueueRef {
  # A queue. A request without one means default/default.
  tenant @0 :Text;  # default: the credential's own tenant
  queue @1 :Text;   # default: "default"
}

struct Error {
  # Why a call was refused. The code is stable; the text is for people.
  code @0 :Text;               # "unauthenticated", "forbidden", "not_found", "rate_limited", ...: the same as over HTTP
  message @1 :Text;            # what is wrong, and what to do
  requestId @2 :Text;          # as in the journal and the server's log
  retryAfterMs @3 :Int64 = -1; # when a retry may succeed
  limit @4 :Int64 = -1;        # of a rate or quota
  current @5 :Int64 = -1;      # used of a quota, left of a rate
  tenant @6 :Text;
  queue @7 :Text;
}

struct ItemError {
  # Why one item of a batch was refused.
  code @0 :Text;
  message @1 :Text;
}

struct Attribute {
  name @0 :Text;
  value @1 :Text;
}

enum Durability {
  # What a reply guarantees for the changes it confirms.
  fsync @0;  # they are on the disk
  os @1;     # they are in the operating system's cache: a crash of the machine may lose the latest ones
}

# ---- login ----

interface Tenantq {
  # The bootstrap capability of a connection.
  login @0 (token :Text, agent :Text, requestId :Text) -> LoginReply;
  # Log in with an API key or JSON web token, or without one if the TLS client certificate identifies the caller. The credential is
  # checked here and with every call of the session, so a revoked or expired one is refused at once. `agent` names the program.
}

struct LoginReply {
  union {
    ok @0 :Void;
    error @1 :Error;
  }
  session @2 :Session; # not in the union, so that calls can be sent before the login is answered
  principal @3 :Text;  # its name in the journal
  tenant @4 :Text;     # the credential's own, used for a QueueRef without a tenant
  durability @5 :Durability;
  schemaVersion @6 :UInt16;
}

interface Session {
  # All calls on queues and messages, with the credential of the login.
  add @0 AddRequest -> AddReply;
  poll @1 PollRequest -> PollReply;
  fleetPoll @2 FleetPollRequest -> PollReply;
  ack @3 AckRequest -> SettleReply;
  nack @4 NackRequest -> SettleReply;
  release @5 ReleaseRequest -> SettleReply;
  extend @6 ExtendRequest -> SettleReply;
  remove @7 RemoveRequest -> RemoveReply;
  peek @8 PeekRequest -> PeekReply;
  message @9 MessageRequest -> MessageReply;
  result @10 ResultRequest -> ResultReply;
  trace @11 MessageRequest -> TraceReply;
  purge @12 DestroyRequest -> PurgeReply;
  redrive @13 RedriveRequest -> RedriveReply;
  redriveStatus @14 RedriveTaskRequest -> RedriveReply;
  cancelRedrive @15 RedriveTaskRequest -> RedriveReply;
  getQueue @16 QueueRequest -> QueueReply;
  putQueue @17 PutQueueRequest -> QueueReply;
  deleteQueue @18 DestroyRequest -> DoneReply;
  listQueues @19 ListQueuesRequest -> QueuesReply;
  pauseQueue @20 QueueRequest -> QueueReply;
  resumeQueue @21 QueueRequest -> QueueReply;
  stats @22 QueueRequest -> StatsReply;
}

# ---- adding ----

struct NewMessage {
  body @0 :Data;
  priority @1 :Int32;           # 0 to 9; 9 is delivered first
  delayMs @2 :Int64;
  ttlMs @3 :Int64 = -1;
  key @4 :Text;                 # idempotency key
  group @5 :Text;
  attributes @6 :List(Attribute);
  maxAttempts @7 :Int32 = -1;
}

struct AddRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;           # the caller's ID of this call, for the journal; in every request
  key @2 :Text;                 # idempotency key of the whole batch
  union {
    messages @3 :List(NewMessage);
    bodies @4 :List(Data);      # messages with only a body: faster to build and read
  }
}

struct AddedMessage {
  # One per message, in order.
  id @0 :Text;
  duplicate @1 :Bool;           # the key was used before: this is the earlier message's ID
  error @2 :ItemError;          # set if the message was refused
}

struct AddReply {
  union {
    messages @0 :List(AddedMessage);
    error @1 :Error;
  }
  durability @2 :Durability;
}

# ---- polling ----

struct PollRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  max @2 :Int32 = 1;
  waitMs @3 :Int64;             # 0 returns at once
  leaseMs @4 :Int64 = -1;
  consumer @5 :Text;            # distinguishes consumers that share a credential and an address
}

struct FleetPollRequest {
  # One queue name in many tenants, in fair turns.
  ref @0 :QueueRef;             # the queue name; with a tenant, only that tenant
  requestId @1 :Text;
  tenants @2 :List(Text);       # default: every tenant that the caller has a grant for
  max @3 :Int32 = 1;
  waitMs @4 :Int64;
  leaseMs @5 :Int64 = -1;
  consumer @6 :Text;
}

struct Delivery {
  id @0 :Text;
  receipt @1 :Text;             # settles this delivery
  body @2 :Data;
  attempt @3 :UInt32;           # 1 on the first delivery
  priority @4 :UInt8;
  attributes @5 :List(Attribute);
  group @6 :Text;
  addedAt @7 :Int64;
  leaseUntil @8 :Int64;
  tenant @9 :Text;
  queue @10 :Text;
}

struct PollReply {
  union {
    messages @0 :List(Delivery);
    error @1 :Error;
  }
  nowAt @2 :Int64;              # the server's wall clock; leaseUntil minus this is the rest of a lease
  durability @3 :Durability;
}

# ---- settling ----

struct Result {
  union {
    none @0 :Void;
    value @1 :Data;             # completed
    error @2 :Text;             # failed, and why
  }
}

struct AckRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  receipts @2 :List(Text);
  results @3 :List(Result);     # empty, or one per receipt
}

struct NackRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  receipts @2 :List(Text);
  delayMs @3 :Int64 = -1;       # default: the queue's backoff
  reason @4 :Text;
}

struct ReleaseRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  receipts @2 :List(Text);
}

struct ExtendRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  receipts @2 :List(Text);
  leaseMs @3 :Int64;            # from now
}

struct Settled {
  # One per receipt, in order.
  receipt @0 :Text;
  ok @1 :Bool;
  error @2 :ItemError;
  leaseUntil @3 :Int64 = -1;    # after an extend
}

struct SettleReply {
  union {
    results @0 :List(Settled);
    error @1 :Error;
  }
  durability @2 :Durability;
}

struct RemoveRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  ids @2 :List(Text);
}

struct Removed {
  # One per id, in order.
  id @0 :Text;
  ok @1 :Bool;
  error @2 :ItemError;
}

struct RemoveReply {
  union {
    results @0 :List(Removed);
    error @1 :Error;
  }
  durability @2 :Durability;
}

# ---- reading ----

struct PeekRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  limit @2 :Int32 = 10;
  cursor @3 :Text;              # of the previous page
}

struct Ended {
  # How one delivery ended.
  attempt @0 :UInt32;
  at @1 :Int64;
  outcome @2 :Text;
  reason @3 :Text;
}

struct DeadLetter {
  # Why and from where a message became a dead letter.
  reason @0 :Text;
  source @1 :Text;
  attempts @2 :UInt32;
  at @3 :Int64;
}

struct Message {
  # A stored message. Body, attributes and group are set only for callers who may read them.
  id @0 :Text;
  tenant @1 :Text;
  queue @2 :Text;
  state @3 :Text;               # "ready", "delayed", "blocked" or "in_flight"
  body @4 :Data;
  bodyHidden @5 :Bool;          # the caller may not read it
  bodyError @6 :Text;           # code of the error that hides it
  encrypted @7 :Bool;           # at rest
  size @8 :UInt64;
  priority @9 :UInt8;
  attributes @10 :List(Attribute);
  group @11 :Text;
  attempts @12 :UInt32;
  maxAttempts @13 :UInt32;
  addedAt @14 :Int64;
  visibleAt @15 :Int64;
  expiresAt @16 :Int64 = -1;
  leaseUntil @17 :Int64 = -1;
  history @18 :List(Ended);
  dead @19 :DeadLetter;         # set if it is a dead letter
}

struct PeekReply {
  union {
    messages @0 :List(Message);
    error @1 :Error;
  }
  cursor @2 :Text;              # set if there is another page
  durability @3 :Durability;
}

struct MessageRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  id @2 :Text;
}

struct MessageReply {
  union {
    message @0 :Message;
    error @1 :Error;
  }
  durability @2 :Durability;
}

struct ResultRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  id @2 :Text;
  waitMs @3 :Int64;             # maximum time to wait while it is pending
}

struct ResultReply {
  union {
    pending @0 :Void;
    value @1 :Data;             # completed
    failed @2 :Text;            # why
    hidden @3 :Void;            # completed; the caller may not read it
    error @4 :Error;
  }
  durability @5 :Durability;
}

struct Row {
  # One row of the journal.
  shard @0 :Text;
  seq @1 :UInt64;
  n @2 :UInt32;
  ts @3 :Int64;
  tenant @4 :Text;
  queue @5 :Text;
  op @6 :Text;
  messageId @7 :Text;
  principal @8 :Text;
  bytes @9 :UInt64;
  priority @10 :UInt8;
  attempt @11 :UInt32;
  waitMs @12 :Int64;
  processMs @13 :Int64;
  outcome @14 :Text;
  errorCode @15 :Text;
  remote @16 :Text;
  requestId @17 :Text;
  details @18 :Text;
  count @19 :UInt64;
  userAgent @20 :Text;
}

struct TraceReply {
  union {
    rows @0 :List(Row);         # about one message, oldest first
    error @1 :Error;
  }
  durability @2 :Durability;
}

# ---- queues ----

struct QueueRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
}

struct PutQueueRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  config @2 :Text;              # a JSON object of the settings to change; null resets one to its default
}

struct DestroyRequest {
  # Purge or delete a queue: repeat its name, and give a reason of at least ten characters.
  ref @0 :QueueRef;
  requestId @1 :Text;
  confirm @2 :Text;
  reason @3 :Text;
  force @4 :Bool;               # delete: do not wait for leases to settle
}

struct ListQueuesRequest {
  ref @0 :QueueRef;             # its tenant
  requestId @1 :Text;
  cursor @2 :Text;
  limit @3 :Int32 = 100;
}

struct Stats {
  status @0 :Text;              # "active", "paused" or "draining"
  ready @1 :Int64;
  delayed @2 :Int64;
  inFlight @3 :Int64;
  blocked @4 :Int64;
  dead @5 :Int64;
  bytes @6 :Int64;
  oldestAgeMs @7 :Int64;
  addedTotal @8 :Int64;
  addedBytesTotal @9 :Int64;
  deliveredTotal @10 :Int64;
  ackedTotal @11 :Int64;
  nackedTotal @12 :Int64;
  leaseExpiredTotal @13 :Int64;
  deadTotal @14 :Int64;
  expiredTotal @15 :Int64;
  removedTotal @16 :Int64;
  healedTotal @17 :Int64;
}

struct Suspension {
  mode @0 :Text;                # "settle", "freeze" or "fill"
  reason @1 :Text;
  by @2 :Text;
  at @3 :Int64;
}

struct Queue {
  tenant @0 :Text;
  name @1 :Text;
  config @2 :Text;              # a JSON object of all settings, as over HTTP
  stats @3 :Stats;
  id @4 :UInt32;                # inside the tenant
  suspension @5 :Suspension;    # set if adds and polls are refused
}

struct QueueReply {
  union {
    queue @0 :Queue;
    error @1 :Error;
  }
  created @2 :Bool;             # after putQueue: the queue is new
  durability @3 :Durability;
}

struct QueuesReply {
  union {
    queues @0 :List(Queue);
    error @1 :Error;
  }
  cursor @2 :Text;              # set if there is another page
  durability @3 :Durability;
}

struct StatsReply {
  union {
    stats @0 :Stats;
    error @1 :Error;
  }
  durability @2 :Durability;
}

struct DoneReply {
  union {
    done @0 :Void;
    error @1 :Error;
  }
  durability @2 :Durability;
}

struct PurgeReply {
  union {
    purged @0 :UInt64;
    error @1 :Error;
  }
  durability @2 :Durability;
}

struct RedriveRequest {
  # Move dead letters back to the queues they came from. All given conditions must hold.
  ref @0 :QueueRef;
  requestId @1 :Text;
  source @2 :Text;
  reason @3 :Text;              # a part of the letter's reason
  ids @4 :List(Text);
  limit @5 :Int64 = -1;
  rate @6 :Int64 = -1;          # messages per second
  dryRun @7 :Bool;
}

struct RedriveTaskRequest {
  ref @0 :QueueRef;
  requestId @1 :Text;
  task @2 :Text;
}

struct Redrive {
  task @0 :Text;
  state @1 :Text;               # "running", "done", "cancelled" or "failed"
  moved @2 :UInt64;             # in a dry run: would be moved
  skipped @3 :UInt64;
  dryRun @4 :Bool;
}

struct RedriveReply {
  union {
    redrive @0 :Redrive;
    error @1 :Error;
  }
  durability @2 :Durability;
}
