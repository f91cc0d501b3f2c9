// Package mux multiplexes a connection: streams, their windows, and whose turn it
// is, for whatever framing.
//
// The mental model: a Session is one mutex, a set of streams and an outbox. What
// a program writes on a stream is copied into the outbox as frames, and one
// goroutine empties that into the connection: frames that are written together
// leave together, and no call on a stream waits for the connection any longer
// than its deadline. One more goroutine reads frames and puts what they carry
// into the streams' buffers. A stream has no goroutine.
//
// How frames are spelled, and how streams come to be, is a Framing's to say:
// overyamux and overh2 are one each. A Framing spells what the session tells it
// to, and tells the session what the peer has said.
//
// Turns. The outbox holds 64 KiB at most, and less on a slow path. Streams that want room in it queue for
// it and get it one frame at a time; those that have little to say, and streams
// that are being opened, get theirs before bulk, but never more than eight in a
// row while bulk waits. So a keystroke waits for what is in the outbox and below
// it, and not for the queue; and a stream that is given up takes with it all that
// it had still to send, except what is in the outbox.
//
// Windows. A stream starts with a window of 64 KiB, to which each end adds 192 KiB
// at once as long as its session has that to spare. A window that is read half
// empty within two round trips is in the way, and doubles, up to 2 MiB: that fills
// 100 Mbit/s at 100 ms of round trip, and 20 MB/s. On a path that loses packets what
// comes behind a lost one waits for it, so that it takes more: 8 MiB, as long as half
// of the session's budget is left. All that windows have beyond
// their first 64 KiB comes from that budget, of 64 MiB a session. So 1,000 streams
// whose readers have stalled cost at most 128 MiB, and a reader that stalls costs
// its neighbours nothing: there is no window for the session as a whole. Buffers
// hold memory only for what lies in them.
//
// All sessions of a process share a tunnel.Intake, which has to grant what windows
// have beyond their first 64 KiB, too: half of its limit at most. When more than
// half of the limit lies unread, a stream gives back what it is read of its window,
// down to 16 KiB, by which it goes on. So a process has its limit unread at most with
// up to 8,192 streams for each GiB of it, and 64 KiB more for each further one: no
// stream is cut off for what others do not read. A session that has ended counts no
// more.
//
// Bounds. Each end of a session has at most Options.MaxStreams streams, and a
// bounded number more wait to be accepted. A peer that asks for more answers than
// it reads is cut off.
//
// What this package is not: it knows no frame, dials nothing, and does not find
// out who is dead; the pipe does, or the control stream.
package mux
