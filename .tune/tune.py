import sys,time; sys.path.insert(0,'.')
import numpy as np, cupy, ge2, itertools
import benchmarks.gpu_kernels as G
from ge2.codegen.cuda import rows, lanes, partial
from ge2.runtime.compile import compile_graph
from ge2.backends.cuda.device import gpu
from ge2.kernels.catalog import launch
W=G.works(False); dev=gpu(0)
def graph_of(w,arrays):
    structs=[ge2.ShapeDtypeStruct(a.shape,a.dtype) for a in arrays]
    g=ge2.make_jaxpr(lambda *a: w.function(ge2,np,*a))(*structs); return getattr(g,'graph',g)
def timed(f,arrays,n=0.03):
    wait=cupy.cuda.runtime.deviceSynchronize
    f(*arrays); wait(); t=time.perf_counter(); f(*arrays); wait(); t=time.perf_counter()-t
    k=max(5,int(n/t)); ts=[]
    for _ in range(7):
        wait(); t=time.perf_counter()
        for _ in range(k): f(*arrays)
        wait(); ts.append((time.perf_counter()-t)/k)
    return sorted(ts)[3]*1e6
N=1<<30
plans={
 'cross-entropy':[{},{'rows.TEAM':1024},{'rows.TEAM':1024,'rows.HALVES':0},{'rows.TEAM':256}],
 'layernorm-grad':[{},{'rows.CROWD':1024},{'rows.MANY':16}],
 'layernorm':[{},{'rows.FEW':8}],
 'softmax-columns':[{}],
}
mods={'rows':rows,'lanes':lanes,'partial':partial}
only=sys.argv[1:] or list(plans)
for name in only:
    w=W[name]; arrays=tuple(map(cupy.asarray,w.arguments(np.random.default_rng(0)))); g=graph_of(w,arrays)
    for p in plans[name]:
        old={k:getattr(mods[k.split('.')[0]],k.split('.')[1]) for k in p}
        try:
            for k,v in p.items(): setattr(mods[k.split('.')[0]],k.split('.')[1],v)
            launch.cache_clear()
            f=compile_graph(g,device=dev); f.build()
            info=[]
            for s in f.driver.sources.values():
                b=dev.module(s.text()).binary.kernels; info.append(f"{s.name} {s.kernel.grid} {s.kernel.block} {[x.value for x in s.kernel.fixed]} r{b[0].registers if b else '?'}")
            print(f"{name:16} {timed(f,arrays):8.1f} us  {p}  {info}",flush=True)
        except Exception as e: print(name,p,'FAILED',repr(e)[:300],flush=True)
        finally:
            for k,v in old.items(): setattr(mods[k.split('.')[0]],k.split('.')[1],v)
    del arrays; cupy.get_default_memory_pool().free_all_blocks()
