package controlplane

// The help topic controller-kinds, compared with what controllers watch, with what their
// roles let them write, and with what they write in the tests of this package.

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

// A listed is what controller-kinds.md says of a controller.
type listed struct {
	watches, writes []string // kinds; resources with their subresources
}

// kindsTable returns what controller-kinds.md says, by controller.
var kindsTable = sync.OnceValue(func() map[string]listed {
	text, err := Help.ReadFile("controller-kinds.md")
	if err != nil {
		panic(err) // it is in the program
	}
	out := map[string]listed{}
	own := regexp.MustCompile(`\(.*?\)`) // what a controller watches for itself alone
	for _, row := range strings.Split(strings.Join(strings.Fields(string(text)), " "), " - `")[1:] {
		name, row, _ := strings.Cut(row, "`: watches ")
		watches, writes, _ := strings.Cut(row, "; writes ")
		out[name] = listed{words(own.ReplaceAllString(watches, "")), words(strings.TrimSuffix(writes, "."))}
	}
	return out
})

func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", ", r) })
}

// checkWatches compares the kinds that a controller watches with the table, and what the
// table lets it write with its roles.
func checkWatches(t *testing.T, controller string, k *kinds) {
	t.Helper()
	is := kindsTable()[controller]
	var watched []string
	for kind := range k.watched {
		watched = append(watched, kind)
	}
	slices.Sort(watched)
	if !slices.Equal(watched, is.watches) || len(is.writes) == 0 {
		t.Errorf("%s watches %q; the table says %q, and that it writes %q", controller, watched, is.watches, is.writes)
	}
	for _, resource := range is.writes {
		if !mayWrite(controller, resource) {
			t.Errorf("no role lets %s write %s", controller, resource)
		}
	}
}

// mayWrite tells whether a controller's roles let it write a resource in any way.
func mayWrite(controller, resource string) bool {
	r := request.RequestInfo{}
	r.Resource, r.Subresource, _ = strings.Cut(resource, "/")
	for _, gv := range scheme.Scheme.PrioritizedVersionsAllGroups() {
		for _, r.Verb = range []string{"create", "update", "patch", "delete"} {
			for _, r.Namespace = range []string{"default", "kube-system", nodekeys.Namespace} {
				if r.APIGroup = gv.Group; refusedBy(controller, &r) == "" {
					return true
				}
			}
		}
	}
	return false
}

// unlisted returns what a controller writes that the table does not have, for people.
func unlisted(r *http.Request) string {
	name, ok := controllerOf(r.UserAgent())
	info, err := infos.NewRequestInfo(r)
	if !ok || err != nil || !info.IsResourceRequest || r.Method == http.MethodGet || !slices.Contains(Names(), name) {
		return ""
	}
	resource := strings.TrimSuffix(info.Resource+"/"+info.Subresource, "/")
	if is := kindsTable()[name].writes; slices.Contains(is, "*") || slices.Contains(is, resource) {
		return ""
	}
	return name + " writes " + resource + ", which controller-kinds.md does not have"
}
