package process

import (
	"strconv"
	"testing"

	"github.com/moby/sys/user"
)

// TestGroupOfUser: without a group of its own a container has that of its user in /etc/passwd, else 0.
func TestGroupOfUser(t *testing.T) {
	users, err := user.ParsePasswdFileFilter("/etc/passwd", func(u user.User) bool { return u.Uid > 0 && u.Gid > 0 })
	if err != nil || len(users) == 0 {
		t.Skip("SKIPPED: no user with a group in /etc/passwd: ", err)
	}
	const unknown = 54321
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		for uid, gid := range map[int]int{users[0].Uid: users[0].Gid, unknown: 0} {
			c := g.container("c"+strconv.Itoa(uid), "id -u; id -g")
			id := int64(uid)
			c.UID = &id
			if got, want := g.output(c), strconv.Itoa(uid)+"\n"+strconv.Itoa(gid)+"\n"; got != want {
				t.Errorf("user %d: %q, want %q", uid, got, want)
			}
		}
	})
}
