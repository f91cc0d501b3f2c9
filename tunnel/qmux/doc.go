// Package qmux carries sessions: QUIC's streams over TLS connections, several of them
// where that helps, and others when they break.
//
// The base is QMux version 1 (draft-ietf-quic-qmux): frames of RFC 9000, section 19, in
// records that fill a TLS record. A peer that knows nothing but the draft is served. Two
// extensions, which both ends declare by the transport parameter hawser_session, make it
// a session that lasts:
//
//   - Several connections. A STREAM frame names its stream and offset, and may therefore
//     travel on any connection of the session. What is small shares the first one. A
//     direction that turns out to carry much goes on on a connection of its own, which
//     the dialing end makes when it is first wanted and drops half a minute after its
//     last use. Whoever reads waits until the gap before what came early is closed.
//   - Resumption. The receiver acknowledges by stream and offset, and the sender keeps
//     what it has sent until then. What a lost connection had under way leaves again on
//     another. A session is parked only while it has no connection, and is over when
//     that has lasted for the detach window.
//
// The life of a byte, from a target to a client:
//
//	source.go   ReadFrom reads the target's socket into a block, once it is ready
//	send.go     the block becomes a segment of the stream, kept until acknowledged
//	paths.go    says which connection it takes
//	write.go    whoever finds that connection idle takes a turn and writes records from
//	            where they lie; batch.go makes one system call of them
//	conn.go     the other end's reader takes the record off TLS into a block
//	frames.go   finds the stream
//	receive.go  puts the bytes in order and counts the window down
//	sink.go     writes them to the client's socket at once, as far as that takes them
//	record.go   says that they have come, with whatever goes the other way
//
// One goroutine reads a connection. One more writes it while its socket does not take
// everything at once; else whoever has something to say writes it himself. A session has
// one timer (liveness.go). A stream has no goroutine.
//
// Turns. Opens, acknowledgements and little writes go first, and bulk a turn at a time:
// 64 KiB, less on a slow path (pace.go). A stream that is given up takes with it what it
// had not sent. While little is expected bulk leaves one processor to it (turns.go).
//
// Liveness is one place (liveness.go). After 14 s of silence the dialing end asks for a
// sign of life, and 5.6 s later gives the connection up. A connection on which something
// is unacknowledged for longer than a second and four round trips, though the system has
// had no acknowledgement for it either, is doubted: the dialing end makes another one
// beside it, and the session goes on on whichever answers; the accepting end, which
// cannot dial, says so on another connection if there is one.
//
// Bounds. A stream's window is 64 KiB to begin with and grows while it is in the way, up
// to 8 MiB; what is beyond 64 KiB comes from 64 MiB a session and from the process's
// tunnel.Intake. What is kept to send again is 16 MiB a session at most and 256 MiB a
// process, beyond a small block for each stream; the second half of that is for streams
// of which the peer takes more. Streams that wait to be accepted, gaps
// in a stream, answers that wait to be sent, connections, sessions of one identity and
// of a listener are bounded, too. A listener takes 4,096 connections beside the first of
// each session: one more is answered Busy, its stream goes on where it was, and the
// dialing end asks again later.
//
// Safety. A session belongs to the identity that began it. To join it takes that
// identity, proved anew by the connection, and a secret that each joining replaces.
// Joinings are numbered: one that comes late is turned away.
//
// What this package is not: it does not encrypt or authenticate (TLS below it does), a
// session survives neither of its processes, and one transfer is not spread over several
// connections.
package qmux
