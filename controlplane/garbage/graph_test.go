package garbage

import (
	"fmt"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestFoundElsewhere: a lookup where a dependent expected an owner may end after the owner was
// seen elsewhere. It must not make the graph forget the owner, whose own owners would never be
// looked at.
func TestFoundElsewhere(t *testing.T) {
	g := newGraph()
	part := func(namespace string, uid types.UID) identity {
		return identity{"example.com/v1", "Part", namespace, "p-" + string(uid), uid}
	}
	owned := func(owner types.UID) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "example.com/v1", Kind: "Part", Name: "p-" + string(owner), UID: owner},
		}}}
	}
	g.observe(part("a", "dependent"), owned("owner"))
	expected, ok := g.look("owner")
	if !ok || !expected.virtual || expected.namespace != "a" {
		t.Fatalf("the owner is expected at %v", expected)
	}
	g.observe(part("b", "owner"), owned("nobody"))
	g.missing(expected.identity)
	if v, ok := g.look("owner"); !ok || v.virtual || v.namespace != "b" {
		t.Errorf("the owner is %v, %v", v, ok)
	}
	g.missing(part("b", "owner"))
	if _, ok := g.look("owner"); ok {
		t.Error("the owner is missing and still known")
	}
}

// TestOtherVersion: an object is looked for in the version in which it was seen last. The one
// before may not be served any more.
func TestOtherVersion(t *testing.T) {
	g := newGraph()
	part := func(version string) identity {
		return identity{"example.com/" + version, "Part", "a", "p", "p"}
	}
	for _, version := range []string{"v1beta1", "v1"} {
		g.observe(part(version), &metav1.PartialObjectMetadata{})
	}
	if v, ok := g.look("p"); !ok || v.identity != part("v1") {
		t.Errorf("it is %v, %v", v.identity, ok)
	}
	g.missing(part("v1beta1"))
	if _, ok := g.look("p"); !ok {
		t.Error("that the old version is not there made it forgotten")
	}
}

// manyOwners has an object with n owners come, change, and lose all of them but one.
func manyOwners(n int) *graph {
	refs := make([]metav1.OwnerReference, n)
	for i := range refs {
		name := fmt.Sprintf("owner-%d", i*7919%n)
		refs[i] = metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: types.UID("0123456789abcdef-" + name)}
	}
	g, id := newGraph(), identity{"v1", "ConfigMap", "a", "dependent", "dependent"}
	for range 2 {
		g.observe(id, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{OwnerReferences: refs}})
	}
	for i := range refs[1:] {
		g.missing(identity{"v1", "ConfigMap", "a", refs[i].Name, refs[i].UID})
	}
	return g
}

func TestManyOwners(t *testing.T) {
	if left := len(manyOwners(20_000).nodes); left != 2 {
		t.Errorf("%d nodes are left", left)
	}
}

// BenchmarkManyOwners: what an object's references cost grows with their number, and not with
// its square. Whoever may write one object may give it ten thousands, and all others wait.
func BenchmarkManyOwners(b *testing.B) {
	for _, n := range []int{1000, 20_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				manyOwners(n)
			}
		})
	}
}
