package volumes

// Tests of who may read a token.

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/downward"
)

// TestTokenBelongsToItsUser: a token is the user's as whom all containers run, and the pod's group
// reads it; others do not. Else it has the mode of its volume.
func TestTokenBelongsToItsUser(t *testing.T) {
	user := func(uid int64) *corev1.SecurityContext { return &corev1.SecurityContext{RunAsUser: &uid} }
	for name, tc := range map[string]struct {
		pod        *corev1.PodSecurityContext
		containers []*corev1.SecurityContext
		mode       os.FileMode
		owner      int // -1 for this user
	}{
		"no user":                {nil, []*corev1.SecurityContext{nil}, 0o444, -1},
		"the pod's user":         {&corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1234)}, []*corev1.SecurityContext{nil, user(1234)}, 0o600, 1234},
		"a container's user":     {nil, []*corev1.SecurityContext{user(1234)}, 0o600, 1234},
		"several users":          {nil, []*corev1.SecurityContext{user(1234), user(1235)}, 0o444, -1},
		"one that does not say":  {nil, []*corev1.SecurityContext{user(1234), nil}, 0o444, -1},
		"a group":                {&corev1.PodSecurityContext{FSGroup: ptr.To(int64(os.Getegid()))}, []*corev1.SecurityContext{nil}, 0o640, -1},
		"a group and one's user": {&corev1.PodSecurityContext{FSGroup: ptr.To(int64(os.Getegid()))}, []*corev1.SecurityContext{user(1234)}, 0o640, 1234},
	} {
		s, pod, err := setup(t, &fakeObjects{}, corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: ptr.To[int32](0o444), Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		pod.Spec.SecurityContext, pod.Spec.Containers = tc.pod, nil
		for _, sc := range tc.containers {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{SecurityContext: sc, VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}})
		}
		for range 2 { // once more changes nothing
			if err := s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
				t.Fatal(err)
			}
			dir, _, err := s.Resolve(pod, "v", "")
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(filepath.Join(dir, "token"))
			if err != nil {
				t.Fatal(err)
			}
			owner := tc.owner
			if owner < 0 || os.Geteuid() != 0 { // others cannot give files away
				owner = os.Geteuid()
			}
			if got := info.Sys().(*syscall.Stat_t).Uid; info.Mode().Perm() != tc.mode || int(got) != owner {
				t.Errorf("%s: mode %v, owner %d; want %v, %d", name, info.Mode().Perm(), got, tc.mode, owner)
			}
		}
	}
}
