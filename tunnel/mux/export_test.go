// What tests outside this package may know of it.

package mux

// Constants of the package's.
const (
	First       = first
	Fair        = fair
	Most        = most
	Budget      = budget
	OutCap      = outCap
	LastWords   = lastWords
	LingerBytes = lingerBytes
)

// Books is how much is on a session's books.
func (s *Session) Books() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.streams) + len(s.incoming) + s.unanswered + len(s.ours) + len(s.theirs) + budget - s.spare
	for _, q := range s.out.queues {
		n += len(q)
	}
	return n
}

// Live is how many streams the peer may speak of.
func (s *Session) Live() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// Unread is how many bytes lie in a session's buffers, and how large the blocks
// are that they lie in.
func (s *Session) Unread() (bytes, blocks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		bytes += st.in.bytes
		blocks += len(st.in.parts) * MaxFrame
	}
	return bytes, blocks
}
