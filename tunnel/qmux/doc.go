// Package qmux is the tunnel's own transport: QUIC's streams over TLS connections. A session
// may use several connections, and survives the loss of all of them.
//
// The base is QMux version 1 (draft-ietf-quic-qmux-02): the frames of RFC 9000, section 19, in
// records that fill a TLS record. A peer that knows only the draft is served. If both ends
// send the transport parameter hawser_session they have two extensions:
//
//   - Several connections. A STREAM frame names its stream and offset, and may therefore
//     use any connection of the session. Control frames and small data use the first one. A
//     stream that sends much, or finds the first one's socket full, is assigned a connection
//     of its own. The dialing end makes it when it is first needed, and drops it half a
//     minute after its last use. While it is made, bulk on the first one is bounded. The
//     receiver puts data that arrives out of order back in order.
//   - Resumption. The receiver acknowledges by stream and offset, and the sender retains
//     data until then. Data in flight on a lost connection is retransmitted on another. What
//     was in flight on three in a row may be what breaks them: its stream is held for up to
//     five seconds. A session is parked while it has no connection, and ends when that has
//     lasted for the detach window. It ends at once if its server does not have it any
//     more. Another server behind the same load balancer is known by its name: the dialing
//     end tries again.
//
// Package tunnel has the life of a byte, with the files that it passes through.
//
// Goroutines. One reads each connection. One more writes it while its socket is full;
// otherwise the callers write. A session has one timer (liveness.go). A stream has no
// goroutine.
//
// Turns. Control frames and small data go first, up to a record, then bulk, one stream's
// turn at a time: 64 KiB, or less on a slow path (pace.go). Where another stream has just
// written, a writer lets those that are ready queue first, so that they share the record.
// The unsent data of a stream that is reset is discarded. While small data is expected,
// bulk leaves one processor idle (bulk.go).
//
// Liveness. After 14 s of silence the dialing end sends QX_PING, and 5.6 s later gives the
// connection up. A connection is doubted if data on it is unacknowledged for longer than a
// second and four round trips, and TCP has data outstanding too. Then the dialing end makes
// another connection beside it, and the session uses the one that answers first. The
// accepting end cannot dial: it sends PATH_DOUBTED on another connection, if there is one.
// A peer whose TCP acknowledges is slow, not dead: it is not doubted, and has 42 s.
//
// Bounds. The window of a stream starts at 64 KiB and grows up to 8 MiB while it limits the
// throughput; what is beyond 64 KiB comes out of 64 MiB a session and of the process's
// tunnel.Intake. Retained data is limited to 16 MiB a session and 256 MiB a process, plus
// one block of up to 64 KiB a stream; the second half of either is for streams whose peers
// take data. There are limits as well on streams that wait to be accepted, on gaps in a
// stream, on answers that wait to be sent, on connections, and on sessions of one identity
// and of a listener. A listener takes 4,096 connections beside the first ones. One more is
// refused as Busy: its stream stays where it was, and the dialing end tries again later.
//
// Safety. A session belongs to the identity that began it. Joining it takes that identity,
// proved by the connection's own TLS handshake, and a secret that each joining replaces.
// Joinings are numbered, and an older one is refused after a newer one.
//
// What this package is not: it does not encrypt or authenticate (TLS does), a session does
// not survive the end of either process, and one stream does not use several connections at
// a time.
package qmux
