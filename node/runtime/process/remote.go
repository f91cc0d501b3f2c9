package process

// File systems whose server may be away.

import (
	"os"
	"strings"
	"time"
)

// answerTime is how long the servers of remote file systems may take before a container starts
// without them.
const answerTime = time.Second

// remote reports whether the files of a file system of that type may be elsewhere: requests for them
// can wait for as long as a server is away.
func remote(fsType string) bool {
	switch fsType {
	case "nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "glusterfs", "lustre", "virtiofs":
		return true
	}
	return strings.HasPrefix(fsType, "fuse")
}

// answering are those of the points whose status stat finds within d. A stat that does not return
// ends with the process.
func answering(points []string, d time.Duration, stat func(path string) (os.FileInfo, error)) []string {
	found := make(chan string, len(points))
	for _, p := range points {
		go func() {
			if _, err := stat(p); err == nil {
				found <- p
			}
		}()
	}
	var all []string
	late := time.After(d)
	for len(all) < len(points) {
		select {
		case p := <-found:
			all = append(all, p)
		case <-late:
			return all
		}
	}
	return all
}
