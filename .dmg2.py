import asyncio, itertools, shutil, sys, struct
from pathlib import Path
from collections import Counter
from tests.crash.damage import *
N=itertools.count()
def records(raw):
    out=[];p=0
    while p+7<=len(raw):
        left=32768-p%32768
        if left<7: p+=left; continue
        n,t=struct.unpack_from('<HB',raw,p+4)
        if t==0 and n==0: break
        out.append((p,7+n,t)); p+=7+n
    return out
async def main(clean):
    s=Path('/tmp/dmg2'); shutil.rmtree(s,ignore_errors=True); s.mkdir()
    im=await make_image(s,clean=clean)
    for pat in ('db/MANIFEST*','db/*.log'):
        f=im.files(pat)[-1]; raw=(im.path/f).read_bytes(); rec=records(raw); print(f,len(raw),len(rec),'records',[r[1] for r in rec][-20:])
        ends={p+n for p,n,_ in rec}
        cuts=sorted({c for p,n,_ in rec[-26:] for c in (p,p+1,p+6,p+7,p+7+(n-7)//2,p+n-1)})
        c=Counter(); ex={}; alt=Counter()
        for cut in cuts:
            w=im.copy_to(s/f'c{next(N)}'); (w/f).write_bytes(raw[:cut]); fp=fingerprint(w)
            try: v=await examine(w,im)
            except BaseException as e: v=Verdict('EXC '+type(e).__name__,str(e)[:200])
            c[v.outcome]+=1
            if v.outcome=='refused at open' and fingerprint(w)!=fp: alt[cut]+=1
            if v.outcome=='different' or v.outcome.startswith('EXC'): ex.setdefault((v.outcome,v.text[:40]),[]).append((cut,cut in ends,v.text))
            shutil.rmtree(w)
        print('truncate',dict(c),'altered',sum(alt.values()))
        for k,v in ex.items(): print('  ',len(v),v[:1],v[-1])
        c=Counter(); ex={}; alt=Counter()
        for p,n,_ in rec[-26:]:
            for bit in [*range(p*8+32,p*8+56)]:
                w=im.copy_to(s/f'c{next(N)}'); flip(w/f,bit); fp=fingerprint(w)
                try: v=await examine(w,im)
                except BaseException as e: v=Verdict('EXC '+type(e).__name__,str(e)[:200])
                c[v.outcome]+=1
                if v.outcome=='refused at open' and fingerprint(w)!=fp: alt[bit]+=1
                if v.outcome=='different' or v.outcome.startswith('EXC'): ex.setdefault((v.outcome,v.text[:40]),[]).append((bit-p*8-32,rec.index((p,n,_)),len(rec),v.text))
                shutil.rmtree(w)
        print('header flips',dict(c),'altered',sum(alt.values()))
        for k,v in ex.items(): print('  ',len(v),v[:1],v[-1])
asyncio.run(main(sys.argv[1]=='clean'))
