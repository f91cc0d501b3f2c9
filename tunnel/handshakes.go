// Handshakes: what a listener counts before there is a session.

package tunnel

// Handshakes are those of a listener. All but the last only grow.
type Handshakes struct {
	// Done are those that were finished, Failed those that were not, be it that
	// the client had no valid certificate or never came to the point.
	Done, Failed uint64
	// Refused are clients that were sent away because there were too many.
	Refused uint64
	// Underway are those that are not over.
	Underway int
}

// A Doorkeeper is a Listener that counts its handshakes.
type Doorkeeper interface {
	Listener
	// Transport is the name of the transport whose sessions it yields.
	Transport() string
	Handshakes() Handshakes
}
