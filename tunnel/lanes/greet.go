// Greeting: what is said about lanes when a session begins.

package lanes

import (
	"fmt"
	"strconv"

	"github.com/hawser-project/hawser/tunnel"
)

// Limit is how many lanes may be asked for and allowed.
const Limit = 16

// Keys of the greeting's metadata.
const (
	// metaLanes is, in a hello, how many lanes the agent would have and, in the
	// welcome, how many both ends may have from then on. Without it there are
	// none, and no framing on lane 0 either.
	metaLanes = "lanes"
	// metaSession and metaLane are in the hello of a further lane: the number of
	// the session from its welcome, and the lane's.
	metaSession = "session"
	metaLane    = "lane"
)

// Offer says in m, a hello's or a welcome's metadata, that there may be so many
// lanes. One lane is as good as none, and nothing is said.
func Offer(m tunnel.Meta, lanes int) {
	if lanes > 1 {
		m[metaLanes] = strconv.Itoa(min(lanes, Limit))
	}
}

// Agreed is how many lanes there may be if the peer has said m and this end would
// have want: 1 if there are none.
func Agreed(m tunnel.Meta, want int) int {
	theirs, err := strconv.Atoi(m[metaLanes])
	if err != nil {
		return 1
	}
	return max(1, min(theirs, want, Limit))
}

// Join says in m, a hello's metadata, that the session that it greets is a lane of
// another one.
func Join(m tunnel.Meta, session uint64, lane int) {
	m[metaSession] = strconv.FormatUint(session, 10)
	m[metaLane] = strconv.Itoa(lane)
}

// Joined is what Join has said; ok is false if m says nothing of the kind. Lane is
// 0 in an error's place.
func Joined(m tunnel.Meta) (session uint64, lane int, ok bool) {
	text, ok := m[metaLane]
	if !ok {
		return 0, 0, false
	}
	lane, err := strconv.Atoi(text)
	if err == nil {
		session, err = strconv.ParseUint(m[metaSession], 10, 64)
	}
	if err != nil || lane < 1 {
		return 0, 0, true
	}
	return session, lane, true
}

// Refused is what to tell an agent whose lane is of no session.
func Refused(session uint64, lane int) error {
	return fmt.Errorf("%w: there is no session %d of this agent that lane %d could be of", tunnel.Invalid, session, lane)
}
