package garbage

import (
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
